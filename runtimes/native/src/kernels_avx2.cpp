#include "kernels.hpp"

#include <immintrin.h>

namespace dsedge {
namespace {
#include "lanes_avx2.hpp"

#include "kernel_set.hpp"

constexpr Kernels kTable = table("avx2");
} // namespace

const Kernels *avx2_kernels() { return &kTable; }

} // namespace dsedge
