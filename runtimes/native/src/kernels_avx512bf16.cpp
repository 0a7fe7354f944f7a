#include "kernels.hpp"

#include <immintrin.h>

namespace dsedge {
namespace {
#include "lanes_avx512.hpp"

#include "kernel_set.hpp"

constexpr Kernels kTable = table("avx512bf16");
} // namespace

const Kernels *avx512bf16_kernels() { return &kTable; }

} // namespace dsedge
