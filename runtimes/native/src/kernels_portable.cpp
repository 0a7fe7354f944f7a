#include "half.hpp"
#include "kernels.hpp"


namespace dsedge {
namespace {
#include "lanes_portable.hpp"

#include "kernel_set.hpp"

constexpr Kernels kTable = table("portable");
} // namespace

const Kernels *portable_kernels() { return &kTable; }

} // namespace dsedge
