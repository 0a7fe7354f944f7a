#include "kernels.hpp"

#include <arm_neon.h>

namespace dsedge {
namespace {
#include "lanes_neon.hpp"

#include "kernel_set.hpp"

constexpr Kernels kTable = table("neon");
} // namespace

const Kernels *neon_kernels() { return &kTable; }

} // namespace dsedge
