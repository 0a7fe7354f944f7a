// Cuts a forward into stages and runs their units.
#include "engine.hpp"

#include <algorithm>
#include <stdexcept>

namespace dsedge {

RowRange Engine::rows_of(const Buffer &buffer) const {
  return {0, buffer.selected ? static_cast<int64_t>(now_->wanted.size()) : now_->rows};
}

void Engine::plan(const Forward &f) {
  const KvShape &kv = program_.kv;
  blocks_ = cut_rows(program_, f.segments, f.rows, pool_.threads());
  int64_t floats = 0, merges = 0;
  std::vector<bool> done(plans_.size());
  for (const Instruction &instruction : program_.instructions) {
    if (instruction.op != Op::kAttention)
      continue;
    const size_t ring = kv.ring_of(instruction.layer);
    const int64_t queries = std::max<int64_t>(1, kGroupedQueries / (instruction.heads / kv.kv_heads));
    if (!done[ring])
      plans_[ring] = plan_attention(f.segments, ring, kv, queries, blocks_, pool_.threads());
    done[ring] = true;
    if (static_cast<int64_t>(plans_[ring].tasks.size()) * kv.kv_heads > Pool::kMostUnits)
      throw std::invalid_argument("forward: far too many tokens");
    floats = std::max(floats, plans_[ring].partials * kv.kv_heads * partial_size(instruction));
    merges = std::max(merges, plans_[ring].merges * kv.kv_heads);
  }
  merges_.values.resize(static_cast<size_t>(floats));
  if (static_cast<size_t>(merges) > merges_.done.size())
    merges_.done = std::vector<std::atomic<int32_t>>(static_cast<size_t>(merges));
}

// The buffer whose rows tell how many an instruction has.
const Buffer &Engine::measure(const Instruction &i) const {
  if (i.op == Op::kLinear && i.quantized != kNone)
    return program_.quantized[static_cast<size_t>(i.quantized)];
  const bool reads = i.op == Op::kStore || i.op == Op::kQuantize || i.op == Op::kRope || i.op == Op::kLinear;
  return program_.buffers[static_cast<size_t>(reads ? i.a : i.out)];
}

void Engine::cut_stages() {
  stages_.clear();
  for (size_t n = 0; n < program_.instructions.size(); ++n) {
    const Instruction &i = program_.instructions[n];
    const int32_t at = static_cast<int32_t>(n);
    const bool part = i.op == Op::kLinear || i.op == Op::kAttention, selected = measure(i).selected;
    const Unit unit = !blocks_.empty() && !selected ? Unit::kBlock : part ? Unit::kPart : Unit::kRow;
    if (unit == Unit::kRow && rows_of(measure(i)).count == 1 && prepares_[n] &&
        (i.op != Op::kStore || plan_of(program_.instructions[n + 1]).apart))
      stages_.push_back({at, at + 2, units(program_.instructions[++n]), Unit::kPart});
    else if (unit != Unit::kPart && !stages_.empty() && stages_.back().unit == unit && i.op != Op::kAttention &&
             measure(program_.instructions[n - 1]).selected == selected)
      ++stages_.back().last;
    else
      stages_.push_back({at, at + 1, unit == Unit::kBlock ? static_cast<int32_t>(blocks_.size()) : units(i), unit});
  }
  const size_t blocks = blocks_.empty() ? 0 : stages_.size() * blocks_.size();
  if (taken_.size() < blocks)
    taken_ = std::vector<std::atomic<bool>>(blocks);
  for (size_t n = 0; n < blocks; ++n)
    taken_[n].store(false, std::memory_order_relaxed);
}

int32_t Engine::units(const Instruction &i) const {
  if (i.op == Op::kLinear)
    return static_cast<int32_t>(matrices_[static_cast<size_t>(i.matrix)].panels / (i.gated ? 2 : 1));
  if (i.op == Op::kAttention)
    return static_cast<int32_t>(plan_of(i).tasks.size()) * i.kv_heads;
  return static_cast<int32_t>(rows_of(measure(i)).count);
}

void Engine::work(int32_t number, int32_t begin, int32_t end, int32_t thread) {
  const Stage &stage = stages_[static_cast<size_t>(number)];
  const Instruction *first = program_.instructions.data() + stage.first, *last = program_.instructions.data() + stage.last;
  if (stage.unit == Unit::kPart)
    return run_parts(last[-1], last - first > 1 ? first : nullptr, begin, end, thread);
  for (int32_t unit = begin; unit < end; ++unit) {
    const RowRange rows = stage.unit == Unit::kBlock ? take_block(number, thread) : RowRange{unit, 1};
    for (const Instruction *i = first; i < last; ++i)
      run_rows(*i, rows, thread);
  }
}

// A block that nobody has taken in this stage, if possible one that the thread has had before: what it wrote there is in
// its core's cache. There are as many as a stage has units.
RowRange Engine::take_block(int32_t stage, int32_t thread) {
  const size_t count = blocks_.size(), home = static_cast<size_t>(thread) * count / static_cast<size_t>(pool_.threads());
  std::atomic<bool> *taken = taken_.data() + static_cast<size_t>(stage) * count;
  size_t block = home;
  while (taken[block].exchange(true, std::memory_order_relaxed))
    block = (block + 1) % count;
  const int64_t first = block ? blocks_[block - 1] : 0;
  return {first, blocks_[block] - first};
}

void Engine::run_parts(const Instruction &i, const Instruction *before, int32_t begin, int32_t end, int32_t thread) {
  if (i.op == Op::kLinear)
    return linear(i, before, begin, end, rows_of(measure(i)), thread);
  const int64_t tasks = static_cast<int64_t>(plan_of(i).tasks.size());
  for (int32_t unit = begin; unit < end; ++unit)
    attend(i, before, unit / tasks, unit % tasks, thread);
}

void Engine::run_rows(const Instruction &i, RowRange rows, int32_t thread) {
  if (i.op == Op::kLinear)
    return linear(i, nullptr, 0, units(i), rows, thread);
  if (i.op == Op::kAttention) {
    const std::vector<AttentionTask> &tasks = plan_of(i).tasks;
    for (int64_t head = 0; head < i.kv_heads; ++head)
      for (size_t task = 0; task < tasks.size(); ++task)
        if (const int64_t row = first_row(tasks[task]); row >= rows.first && row < rows.first + rows.count)
          attend(i, nullptr, head, static_cast<int64_t>(task), thread);
  } else {
    for (int64_t row = rows.first; row < rows.first + rows.count; ++row)
      run_row(i, row);
  }
}

} // namespace dsedge
