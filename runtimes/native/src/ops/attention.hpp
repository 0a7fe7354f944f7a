// The running of attention, for the ops that attend to what a layer keeps.
#pragma once

#include "ops/op.hpp"

namespace dsedge {

// What an instruction attends with. Queries are `heads` of the layer's key_dim. Where there are latent queries, `heads` of
// its value_dim, their products with the values count as well.
struct Attending {
  int32_t layer, rope, queries, latent_queries, output;
  int64_t heads;
  float scale, softcap;
};
// Throws std::bad_variant_access for an instruction that does not attend.
Attending attending(const Instruction &i);
// The layer that an instruction attends to, or kNone.
int32_t attended_layer(const Instruction &i);

// Parts of the records of such ops.
void reserve_attention(const Program &program, const Instruction &i, Room &room);
void plan_attention_forward(Context &ctx, const Instruction &i, const Forward &f);
int64_t attention_tasks(const Context &ctx, const Instruction &i);
void run_attention_tasks(Context &ctx, const Instruction &i, const Instruction *lead, int32_t begin, int32_t end,
                         int32_t thread);
void run_attention_rows(Context &ctx, const Instruction &i, RowRange rows, int32_t thread);

// Whether a lone row's key may be written by the task that attends to the last span while others read their spans.
bool last_span_is_apart(const Context &ctx, const Instruction &attention);

} // namespace dsedge
