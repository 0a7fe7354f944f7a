#include "kernels.hpp"

#include <immintrin.h>

namespace dsedge {
namespace {
#include "lanes_avx2.hpp"

#include "kernel_set.hpp"

constexpr Kernels kTable = table("avxvnni");
} // namespace

const Kernels *avxvnni_kernels() { return &kTable; }

} // namespace dsedge
