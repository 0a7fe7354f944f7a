#include "ops/kv_write.hpp"

#include "ops/attention.hpp"

#include <algorithm>

namespace dsedge {

void write_kv(Context &ctx, const KvWrite &o, int64_t row, int64_t head, const float *key) {
  const KvLayer &layer = ctx.program.layer(o.layer);
  const Segment &segment = ctx.segment_of(row);
  const int64_t slot = segment.rings[static_cast<size_t>(layer.ring)].slot_of(segment.position + row - segment.row);
  const KvHead kv = ctx.kv.head(o.layer, static_cast<int32_t>(head));
  if (!ctx.kernels.write_row(kv, slot, key, ctx.row(o.values, row) + head * layer.value_dim))
    ctx.lost.store(true, std::memory_order_relaxed);
}

const float *rotated_key(const Context &ctx, const KvWrite &o, int64_t row, int64_t head, float *room) {
  const int64_t dim = ctx.program.layer(o.layer).key_dim;
  const float *key = ctx.row(o.keys, row) + head * dim;
  if (o.rope == kNone)
    return key;
  std::copy_n(key, dim, room);
  ctx.rotate(o.rope, row, 1, dim, room);
  return room;
}

namespace {

void verify_kv_write(const Checker &check, const Instruction &i) {
  const KvWrite &o = as<KvWrite>(i);
  const KvLayer &layer = check.program.layer(o.layer);
  const Buffer &keys = check.floats(o.keys), &values = check.floats(o.values);
  check.require(keys.width == int64_t{layer.kv_heads} * layer.key_dim &&
                    values.width == int64_t{layer.kv_heads} * layer.value_dim && !keys.wanted,
                "keys or values that are not those of its layer");
  check.rope(o.rope, layer.key_dim);
}

void run_kv_write(Context &ctx, const Instruction &i, RowRange rows, int32_t thread) {
  const KvWrite &o = as<KvWrite>(i);
  const int32_t heads = ctx.program.layer(o.layer).kv_heads;
  for (int64_t row = rows.first; row < rows.first + rows.count; ++row)
    for (int32_t head = 0; head < heads; ++head)
      write_kv(ctx, o, row, head, rotated_key(ctx, o, row, head, ctx.activations.scratch(thread).own_row));
}

bool kv_write_leads(const Instruction &i, const Instruction &next) {
  return attended_layer(next) == as<KvWrite>(i).layer && disjoint(next.writes, i.reads);
}

} // namespace

extern const Op kKvWriteOp;
const Op kKvWriteOp = {.name = "kv_write",
                       .verify = verify_kv_write,
                       .cost = no_products,
                       .run_rows = run_kv_write,
                       .leads = kv_write_leads,
                       .leads_now = last_span_is_apart};

} // namespace dsedge
