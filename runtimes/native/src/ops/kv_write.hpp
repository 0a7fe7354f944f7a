#pragma once

#include "ops/op.hpp"

namespace dsedge {

// Keeps the key of a row and kv head, rotated already, and its value; says in `lost` where they cannot be kept.
void write_kv(Context &ctx, const KvWrite &o, int64_t row, int64_t head, const float *key);
// The key of a row and kv head, rotated. `room` holds key_dim numbers.
const float *rotated_key(const Context &ctx, const KvWrite &o, int64_t row, int64_t head, float *room);

} // namespace dsedge
