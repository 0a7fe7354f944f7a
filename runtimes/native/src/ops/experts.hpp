// What the ops of a mixture of experts share.
#pragma once

#include "ops/op.hpp"

namespace dsedge {

constexpr int64_t kSlot = 128; // numbers that a chosen expert's part of a row is padded to

inline int64_t slot_width(int64_t size) { return (size + kSlot - 1) / kSlot * kSlot; }

} // namespace dsedge
