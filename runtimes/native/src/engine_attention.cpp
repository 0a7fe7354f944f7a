// Attention: a unit is a kv head and one task of the plan: some queries of all heads in the group, over some spans.
#include "engine.hpp"

#include <algorithm>
#include <limits>

namespace dsedge {

namespace {

// A softmax that has seen nothing.
void clear(const Softmax &s, int64_t pairs, int64_t padded) {
  std::fill(s.maximum, s.maximum + pairs, -std::numeric_limits<float>::infinity());
  std::fill(s.total, s.total + pairs, 0.0f);
  std::fill(s.mix, s.mix + pairs * padded, 0.0f);
}

} // namespace

// Gathers the queries of a task; pairs go query by query, the heads of the group together.
AttentionTile Engine::tile(const Instruction &i, const AttentionTask &task, int64_t head, const Scratch &scratch) {
  const Segment &segment = now_->segments[static_cast<size_t>(task.segment)];
  const RingShape &ring = program_.kv.rings[program_.kv.ring_of(i.layer)];
  const std::vector<Piece> &pieces = plan_of(i).pieces[static_cast<size_t>(task.segment)];
  AttentionTile t;
  t.store = kv_.head(segment.sequence, i.layer, static_cast<int32_t>(head));
  t.pieces = pieces.data();
  t.piece_count = static_cast<int64_t>(pieces.size());
  t.first_span = task.first_span;
  t.last_span = task.last_span;
  t.position = scratch.positions;
  t.queries = scratch.queries;
  t.scores = scratch.scores;
  t.converted = scratch.converted;
  t.window = ring.window;
  t.sinks = ring.sinks;
  t.scale = i.scale;
  t.softcap = i.softcap;
  const int64_t group = i.heads / i.kv_heads;
  t.rows = static_cast<int32_t>(task.count * group);
  for (int64_t pair = 0; pair < t.rows; ++pair) {
    const int64_t query = task.first + pair / group;
    const float *from = activations_.row(i.a, segment.row + query) + (head * group + pair % group) * i.dim;
    scratch.positions[pair] = segment.position + query;
    std::copy(from, from + i.dim, scratch.queries + pair * t.store.padded);
  }
  return t;
}

const AttentionPlan &Engine::plan_of(const Instruction &i) const {
  return plans_[program_.kv.ring_of(i.layer)];
}

int64_t Engine::first_row(const AttentionTask &task) const {
  return now_->segments[static_cast<size_t>(task.segment)].row + task.first;
}

// Floats of a partial result.
int64_t Engine::partial_size(const Instruction &i) const {
  return plan_of(i).queries * (i.heads / i.kv_heads) * (2 + whole_lines(i.dim));
}

Softmax Engine::partial(const Instruction &i, int64_t index) {
  const int64_t pairs = plan_of(i).queries * (i.heads / i.kv_heads);
  float *at = merges_.values.data() + index * partial_size(i);
  return {at, at + pairs, at + 2 * pairs};
}

// Turns a lone query, and keeps the key and the value of its position if the task attends to it.
void Engine::prepare(const Instruction &store, const AttentionTask &task, int64_t head, const AttentionTile &tile,
                     float *key) {
  for (int64_t pair = 0; pair < tile.rows; ++pair)
    rotate(store, 0, 1, tile.queries + pair * tile.store.padded);
  if (tile.position[0] / kSpan != task.last_span)
    return;
  std::copy_n(activations_.row(store.b, 0) + head * store.dim, store.dim, key);
  rotate(store, 0, 1, key);
  store_head(store, 0, head, key);
}

void Engine::attend(const Instruction &i, const Instruction *store, int64_t head, int64_t number, int32_t thread) {
  const Scratch &scratch = activations_.scratch(thread);
  const AttentionPlan &plan = plan_of(i);
  const AttentionTask &task = plan.tasks[static_cast<size_t>(number)];
  const AttentionTile t = tile(i, task, head, scratch);
  if (store)
    prepare(*store, task, head, t, scratch.own_row);
  const int64_t pairs = activations_.pairs(), padded = t.store.padded;
  const Softmax local{scratch.sums, scratch.sums + pairs, scratch.local};
  const Softmax state{scratch.sums + 2 * pairs, scratch.sums + 3 * pairs, scratch.local + pairs * padded};
  clear(state, t.rows, padded);
  if (task.parts == 1) {
    kernels_.attend(t, local, 0, state);
    return finish(i, task, head, state);
  }
  kernels_.attend(t, partial(i, head * plan.partials + task.part_at), partial_size(i), state);
  std::atomic<int32_t> &done = merges_.done[static_cast<size_t>(head * plan.merges + task.merge_at)];
  if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < task.parts)
    return;
  done.store(0, std::memory_order_relaxed);
  for (int64_t span = 0; span < task.spans; ++span)
    kernels_.merge(partial(i, head * plan.partials + task.spans_at + span), state, t.rows, padded);
  finish(i, task, head, state);
}

void Engine::finish(const Instruction &i, const AttentionTask &task, int64_t head, const Softmax &state) {
  const Segment &segment = now_->segments[static_cast<size_t>(task.segment)];
  const int64_t group = i.heads / i.kv_heads, padded = whole_lines(i.dim);
  for (int64_t pair = 0; pair < task.count * group; ++pair) {
    float *out = activations_.row(i.out, segment.row + task.first + pair / group) +
                 (head * group + pair % group) * i.dim;
    for (int64_t d = 0; d < i.dim; ++d)
      out[d] = state.mix[pair * padded + d] / state.total[pair];
  }
}

} // namespace dsedge
