#include "kernels.hpp"

#include <arm_neon.h>

namespace dsedge {
namespace {
#include "lanes_neon.hpp"

#include "kernel_set.hpp"

constexpr Kernels kTable = table("i8mm");
} // namespace

const Kernels *i8mm_kernels() { return &kTable; }

} // namespace dsedge
