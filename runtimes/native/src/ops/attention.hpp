#pragma once

#include "ops/op.hpp"

namespace dsedge {

// Whether a lone row's key may be written by the task that attends to the last span while others read their spans.
bool last_span_is_apart(const Context &ctx, const Instruction &attention);

} // namespace dsedge
