// A task is a kv head and one tile of the plan: the queries of some tokens, for all heads that read the kv head, over some
// spans of positions.
#include "ops/attention.hpp"

#include "ops/kv_write.hpp"
#include "pool.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace dsedge {

Attending attending(const Instruction &i) {
  if (const LatentAttention *o = std::get_if<LatentAttention>(&i.operands))
    return {o->layer, o->rope, o->queries, o->latent_queries, o->output, o->heads, o->scale, 0};
  const Attention &o = as<Attention>(i);
  return {o.layer, o.rope, o.queries, kNone, o.output, o.heads, o.scale, o.softcap};
}

int32_t attended_layer(const Instruction &i) {
  const bool attends = std::holds_alternative<Attention>(i.operands) || std::holds_alternative<LatentAttention>(i.operands);
  return attends ? attending(i).layer : kNone;
}

namespace {

int64_t heads_of_group(const Program &program, const Attending &o) {
  return o.heads / program.layer(o.layer).kv_heads;
}

AttentionCut cut_of(const Program &program, const Attending &o) {
  const KvLayer &layer = program.layer(o.layer);
  return {layer.ring, layer.kv_heads, std::max<int64_t>(1, kGroupedQueries / heads_of_group(program, o))};
}

const AttentionPlan &plan_of(const Context &ctx, const Attending &o) { return ctx.attention.of(cut_of(ctx.program, o)); }

void verify_attention(const Checker &check, const Instruction &i) {
  const Attention &o = as<Attention>(i);
  const KvLayer &layer = check.program.layer(o.layer);
  check.require(o.heads > 0 && o.heads < 65536 && o.heads % layer.kv_heads == 0, "heads that cannot be grouped");
  check.require(check.floats(o.queries).width == o.heads * layer.key_dim && !check.floats(o.queries).wanted &&
                    check.floats(o.output).width == o.heads * layer.value_dim && o.queries != o.output,
                "queries or an output that do not fit its layer");
  check.require(o.softcap >= 0 && o.scale > 0, "a scale or soft-cap that is not possible");
  check.rope(o.rope, layer.key_dim);
}

Cost attention_cost(const Program &program, const Instruction &i) {
  const Attention &o = as<Attention>(i);
  const KvLayer &layer = program.layer(o.layer);
  return {0, static_cast<double>(o.heads) * (layer.key_dim + layer.value_dim), layer.ring};
}

} // namespace

void reserve_attention(const Program &program, const Instruction &i, Room &room) {
  const Attending o = attending(i);
  const KvLayer &layer = program.layer(o.layer);
  room.tile_rows = std::max({room.tile_rows, int64_t{kGroupedQueries}, heads_of_group(program, o)});
  room.query_stride = std::max(room.query_stride, whole_lines(layer.key_dim));
  room.padded = std::max(room.padded, whole_lines(layer.value_dim));
}

namespace {

// Floats of a partial result of a tile.
int64_t partial_size(const Program &program, const Attending &o, const AttentionPlan &plan) {
  return plan.queries * heads_of_group(program, o) * (2 + whole_lines(program.layer(o.layer).value_dim));
}

} // namespace

void plan_attention_forward(Context &ctx, const Instruction &i, const Forward &f) {
  const Attending o = attending(i);
  const AttentionCut cut = cut_of(ctx.program, o);
  AttentionPlans &all = ctx.attention;
  if (all.find(cut) < 0) {
    all.cuts.push_back(cut);
    all.plans.emplace_back();
    all.made_in.push_back(-1);
  }
  const size_t index = static_cast<size_t>(all.find(cut));
  if (all.made_in[index] != ctx.forwards) {
    all.plans[index] = plan_attention(f.segments, cut, ctx.bands, ctx.threads);
    all.made_in[index] = ctx.forwards;
  }
  const AttentionPlan &plan = all.plans[index];
  if (static_cast<int64_t>(plan.tasks.size()) * cut.kv_heads > Pool::kMostUnits)
    throw std::invalid_argument("forward: far too many tokens");
  const size_t floats = static_cast<size_t>(plan.partials * cut.kv_heads * partial_size(ctx.program, o, plan));
  const size_t merges = static_cast<size_t>(plan.merges * cut.kv_heads);
  if (floats > all.partials.size())
    all.partials.resize(floats);
  if (merges > all.done.size())
    all.done = std::vector<std::atomic<int32_t>>(merges);
}

namespace {

// Gathers and rotates the queries of a task; rows go token by token, the heads of the group together.
AttentionTile tile(const Context &ctx, const Attending &o, const AttentionTask &task, int64_t head,
                   const Scratch &scratch) {
  const Segment &segment = ctx.forward->segments[static_cast<size_t>(task.segment)];
  const KvLayer &layer = ctx.program.layer(o.layer);
  const RingView &view = segment.rings[static_cast<size_t>(layer.ring)];
  const std::vector<Piece> &pieces = plan_of(ctx, o).pieces[static_cast<size_t>(task.segment)];
  const int64_t group = heads_of_group(ctx.program, o), dim = layer.key_dim;
  AttentionTile t;
  t.kv = ctx.kv.head(o.layer, static_cast<int32_t>(head));
  t.pieces = pieces.data();
  t.piece_count = static_cast<int64_t>(pieces.size());
  t.first_span = task.first_span;
  t.last_span = task.last_span;
  t.position = scratch.positions;
  t.queries = scratch.queries;
  t.scores = scratch.scores;
  t.converted = scratch.converted;
  t.window = view.window;
  t.sinks = view.sinks;
  t.scale = o.scale;
  t.softcap = o.softcap;
  t.latent_queries = o.latent_queries == kNone ? nullptr : ctx.row(o.latent_queries, segment.row + task.first);
  t.rows = static_cast<int32_t>(task.count * group);
  for (int64_t n = 0; n < task.count; ++n) {
    const int64_t row = segment.row + task.first + n;
    const float *from = ctx.row(o.queries, row) + head * group * dim;
    float *to = scratch.queries + n * group * t.kv.query_stride;
    for (int64_t of = 0; of < group; ++of) {
      scratch.positions[n * group + of] = segment.position + task.first + n;
      std::copy_n(from + of * dim, dim, to + of * t.kv.query_stride);
    }
    if (t.kv.query_stride == dim)
      ctx.rotate(o.rope, row, group, dim, to);
    else
      for (int64_t of = 0; of < group; ++of)
        ctx.rotate(o.rope, row, 1, dim, to + of * t.kv.query_stride);
  }
  return t;
}

// A softmax that has seen nothing.
void clear(const Softmax &s, int64_t rows, int64_t padded) {
  std::fill(s.maximum, s.maximum + rows, -std::numeric_limits<float>::infinity());
  std::fill(s.total, s.total + rows, 0.0f);
  std::fill(s.mix, s.mix + rows * padded, 0.0f);
}

void finish(const Context &ctx, const Attending &o, const AttentionTask &task, int64_t head, const Softmax &state) {
  const Segment &segment = ctx.forward->segments[static_cast<size_t>(task.segment)];
  const int64_t group = heads_of_group(ctx.program, o), dim = ctx.program.layer(o.layer).value_dim;
  for (int64_t row = 0; row < task.count * group; ++row) {
    float *out = ctx.row(o.output, segment.row + task.first + row / group) + (head * group + row % group) * dim;
    for (int64_t d = 0; d < dim; ++d)
      out[d] = state.mix[row * whole_lines(dim) + d] / state.total[row];
  }
}

// Adds the attention that a task's rows pay, whose softmax is whole, where that is wanted.
void tell_attention(Context &ctx, const Attending &o, const AttentionTask &task, int64_t head, const Scratch &scratch,
                    const Softmax &state) {
  const Segment &segment = ctx.forward->segments[static_cast<size_t>(task.segment)];
  const size_t ring = static_cast<size_t>(ctx.program.layer(o.layer).ring);
  const RingView &view = segment.rings[ring];
  if (!view.attention)
    return;
  AttentionTile t = tile(ctx, o, task, head, scratch); // anew: attending may have overwritten the queries
  t.first_span = 0;
  t.last_span = t.position[t.rows - 1] / kSpan;
  const int64_t rows = view.rows(), at = ctx.attention.paid_at[static_cast<size_t>(task.segment) * segment.rings.size() + ring];
  // No other task has this head and these queries; layers of a ring follow one another.
  float *paid = ctx.attention.paid.data() + at + (head * segment.count + task.first) * rows;
  ctx.kernels.tell_attention(t, state, heads_of_group(ctx.program, o), paid, rows);
}

// One task. With a lead, a lone row's key and value are written before it if the task attends to their position.
void attend(Context &ctx, const Attending &o, const KvWrite *lead, int64_t head, int64_t number, int32_t thread) {
  const Scratch &scratch = ctx.activations.scratch(thread);
  const AttentionPlan &plan = plan_of(ctx, o);
  const AttentionTask &task = plan.tasks[static_cast<size_t>(number)];
  const AttentionTile t = tile(ctx, o, task, head, scratch);
  if (lead && t.position[0] / kSpan == task.last_span)
    write_kv(ctx, *lead, 0, head, rotated_key(ctx, *lead, 0, head, scratch.own_row));
  const int64_t most = ctx.activations.room().tile_rows, padded = t.kv.padded;
  const Softmax local{scratch.sums, scratch.sums + most, scratch.local};
  const Softmax state{scratch.sums + 2 * most, scratch.sums + 3 * most, scratch.local + most * padded};
  clear(state, t.rows, padded);
  if (task.parts == 1) {
    ctx.kernels.attend(t, local, 0, state);
    finish(ctx, o, task, head, state);
    return tell_attention(ctx, o, task, head, scratch, state);
  }
  const int64_t size = partial_size(ctx.program, o, plan), rows = plan.queries * heads_of_group(ctx.program, o);
  const auto partial = [&](int64_t index) {
    float *at = ctx.attention.partials.data() + (head * plan.partials + index) * size;
    return Softmax{at, at + rows, at + 2 * rows};
  };
  ctx.kernels.attend(t, partial(task.part_at), size, state);
  std::atomic<int32_t> &done = ctx.attention.done[static_cast<size_t>(head * plan.merges + task.merge_at)];
  if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < task.parts)
    return;
  done.store(0, std::memory_order_relaxed);
  for (int64_t span = 0; span < task.spans; ++span)
    ctx.kernels.merge(partial(task.spans_at + span), state, t.rows, padded);
  finish(ctx, o, task, head, state);
  tell_attention(ctx, o, task, head, scratch, state);
}

} // namespace

int64_t attention_tasks(const Context &ctx, const Instruction &i) {
  const Attending o = attending(i);
  return static_cast<int64_t>(plan_of(ctx, o).tasks.size()) * ctx.program.layer(o.layer).kv_heads;
}

void run_attention_tasks(Context &ctx, const Instruction &i, const Instruction *lead, int32_t begin, int32_t end,
                         int32_t thread) {
  const Attending o = attending(i);
  const int64_t tasks = static_cast<int64_t>(plan_of(ctx, o).tasks.size());
  for (int64_t unit = begin; unit < end; ++unit)
    attend(ctx, o, lead ? &as<KvWrite>(*lead) : nullptr, unit / tasks, unit % tasks, thread);
}

void run_attention_rows(Context &ctx, const Instruction &i, RowRange rows, int32_t thread) {
  const Attending o = attending(i);
  const std::vector<AttentionTask> &tasks = plan_of(ctx, o).tasks;
  for (int64_t head = 0; head < ctx.program.layer(o.layer).kv_heads; ++head)
    for (size_t task = 0; task < tasks.size(); ++task) {
      const int64_t row = ctx.forward->segments[static_cast<size_t>(tasks[task].segment)].row + tasks[task].first;
      if (row >= rows.first && row < rows.first + rows.count)
        attend(ctx, o, nullptr, head, static_cast<int64_t>(task), thread);
    }
}

bool last_span_is_apart(const Context &ctx, const Instruction &attention) {
  return plan_of(ctx, attending(attention)).apart;
}

extern const Op kAttentionOp;
const Op kAttentionOp = {.name = "attention",
                         .sees_other_rows = true,
                         .verify = verify_attention,
                         .cost = attention_cost,
                         .run_rows = run_attention_rows,
                         .reserve = reserve_attention,
                         .plan = plan_attention_forward,
                         .tasks = attention_tasks,
                         .run_tasks = run_attention_tasks};

} // namespace dsedge
