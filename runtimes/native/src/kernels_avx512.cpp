#include "kernels.hpp"

#include <immintrin.h>

namespace dsedge {
namespace {
#include "lanes_avx512.hpp"

#include "kernel_set.hpp"

constexpr Kernels kTable = table("avx512");
} // namespace

const Kernels *avx512_kernels() { return &kTable; }

} // namespace dsedge
