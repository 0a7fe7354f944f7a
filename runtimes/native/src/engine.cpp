#include "engine.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace dsedge {

namespace {

constexpr int64_t kMostUnits = Pool::kMostUnits;

void require(bool fine, const char *message) {
  if (!fine)
    throw std::invalid_argument(message);
}

Program verified(Program program, int32_t threads) {
  require(threads > 0 && threads <= 1024, "engine: no such number of threads");
  verify(program);
  return program;
}

} // namespace

Engine::Engine(Program program, const Kernels &kernels, int32_t threads, int32_t kv_file)
    : program_(verified(std::move(program), threads)), leads_(find_leads(program_)),
      context_(program_, kernels, threads, kv_file),
      pool_(threads, static_cast<int32_t>(program_.instructions.size()),
            [this](int32_t phase, int32_t begin, int32_t end, int32_t thread) { work(phase, begin, end, thread); }) {
  context_.threads = pool_.threads();
}

const Run &Engine::run_of(int32_t matrix, int32_t run) const {
  require(matrix >= 0 && static_cast<size_t>(matrix) < context_.matrices.size(), "engine: no such matrix");
  const std::vector<Run> &runs = context_.matrix(matrix).runs;
  require(run >= 0 && static_cast<size_t>(run) < runs.size(), "engine: no such run of a matrix");
  return runs[static_cast<size_t>(run)];
}

RowBytes Engine::row_bytes(int32_t matrix, int32_t run) const { return dsedge::row_bytes(run_of(matrix, run)); }

void Engine::pack(int32_t matrix, int32_t run, const SourceRows &rows) {
  const Run &to = run_of(matrix, run);
  require(rows.first >= 0 && rows.count >= 0 && rows.first <= to.rows - rows.count, "engine: rows that the run does not have");
  dsedge::pack(to, rows);
}

int64_t Engine::weight_bytes() const {
  int64_t bytes = 0;
  for (const Matrix &m : context_.matrices)
    for (const Run &run : m.runs)
      bytes += run.panels * run.panel_bytes;
  return bytes;
}

void Engine::read(int32_t buffer, int64_t rows, float *out) const {
  require(buffer > kLogits && static_cast<size_t>(buffer) < program_.buffers.size() && !program_.buffer(buffer).codes,
          "engine: no such buffer");
  const Buffer &known = program_.buffer(buffer);
  require(rows >= 0 && rows <= (known.wanted ? last_wanted_ : last_rows_), "engine: rows that the last forward had not");
  std::memcpy(out, context_.row(buffer, 0), static_cast<size_t>(rows * known.width) * 4);
}

void Engine::check(const Forward &f) const {
  require(f.rows > 0 && f.rows <= kMostUnits, "forward: no tokens, or far too many");
  require(static_cast<int64_t>(f.wanted.size()) <= kMostUnits, "forward: far too many wanted rows");
  require(f.angles.size() == program_.ropes.size(), "forward: angles of each rope are needed");
  for (int64_t row : f.wanted)
    require(row >= 0 && row < f.rows, "forward: a wanted row that is not there");
  int64_t rows = 0;
  for (const Segment &segment : f.segments) {
    require(segment.row == rows && segment.count > 0 && segment.count <= f.rows - rows && segment.position >= 0 &&
                segment.position < int64_t{1} << 40,
            "forward: rows or positions that do not follow");
    require(segment.rings.size() == program_.kv.rings.size(), "forward: runs of each ring are needed");
    for (size_t ring = 0; ring < segment.rings.size(); ++ring)
      check_runs(segment, segment.rings[ring], program_.kv.rings[ring]);
    rows += segment.count;
  }
  require(rows == f.rows, "forward: segments of other tokens");
  check_writes(f);
}

// No slot is written by two segments.
void Engine::check_writes(const Forward &f) const {
  std::vector<int64_t> slots;
  for (size_t ring = 0; ring < program_.kv.rings.size() && f.segments.size() > 1; ++ring) {
    slots.clear();
    for (const Segment &segment : f.segments)
      for (int64_t i = 0; i < segment.count; ++i)
        slots.push_back(segment.rings[ring].slot_of(segment.position + i));
    std::sort(slots.begin(), slots.end());
    require(std::adjacent_find(slots.begin(), slots.end()) == slots.end(), "forward: two rows for one slot");
  }
}

// Calls `work(view, segment, kv heads)` for each view of a forward, in order; of layers of a ring, the most kv heads.
template <typename Work> void each_view(const Program &program, const Forward &f, const Work &work) {
  for (const Segment &segment : f.segments)
    for (size_t ring = 0; ring < segment.rings.size(); ++ring) {
      int64_t heads = 0;
      for (const KvLayer &layer : program.kv.layers)
        heads = layer.ring == static_cast<int32_t>(ring) ? std::max<int64_t>(heads, layer.kv_heads) : heads;
      work(segment.rings[ring], segment, heads);
    }
}

// Room for what each kv head pays.
void Engine::reserve_attention(const Forward &f) {
  int64_t size = 0;
  context_.attention.paid_at.clear();
  each_view(program_, f, [&](const RingView &view, const Segment &segment, int64_t heads) {
    context_.attention.paid_at.push_back(size);
    size += view.attention ? heads * segment.count * view.rows() : 0;
  });
  context_.attention.paid.assign(static_cast<size_t>(size), 0);
}

// The sum over kv heads, in their order.
void Engine::tell_attention(const Forward &f) const {
  const float *paid = context_.attention.paid.data();
  each_view(program_, f, [&](const RingView &view, const Segment &segment, int64_t heads) {
    const int64_t size = view.attention ? segment.count * view.rows() : 0;
    for (int64_t head = 0; head < heads; ++head, paid += size)
      for (int64_t i = 0; i < size; ++i)
        view.attention[i] += paid[i];
  });
}

void Engine::forward(const Forward &f) {
  check(f);
  Context &ctx = context_;
  reserve_attention(f);
  ++ctx.forwards;
  ctx.bands = cut_bands(program_, f.segments, f.rows, ctx.threads);
  for (const Instruction &i : program_.instructions)
    if (i.op().plan)
      i.op().plan(ctx, i, f);
  last_rows_ = last_wanted_ = 0; // until this one has succeeded
  ctx.activations.reserve(f.rows, static_cast<int64_t>(f.wanted.size()));
  ctx.activations.bind_logits(f.logits);
  ctx.forward = &f;
  cut_stages(ctx, leads_, stages_);
  const size_t bands = ctx.bands.empty() ? 0 : stages_.size() * ctx.bands.size();
  if (taken_.size() < bands)
    taken_ = std::vector<std::atomic<bool>>(bands);
  for (size_t n = 0; n < bands; ++n)
    taken_[n].store(false, std::memory_order_relaxed);
  std::vector<int32_t> units;
  for (const Stage &stage : stages_)
    units.push_back(stage.units);
  ctx.lost.store(false, std::memory_order_relaxed);
  pool_.run(units);
  tell_attention(f);
  if (ctx.lost.load(std::memory_order_relaxed)) // a softmax can hide them
    std::fill_n(f.logits, f.wanted.size() * static_cast<size_t>(program_.buffer(kLogits).width), std::nanf(""));
  ctx.forward = nullptr;
  last_rows_ = f.rows;
  last_wanted_ = static_cast<int64_t>(f.wanted.size());
}

void Engine::work(int32_t number, int32_t begin, int32_t end, int32_t thread) {
  const Stage &stage = stages_[static_cast<size_t>(number)];
  const Instruction *first = program_.instructions.data() + stage.first, *last = program_.instructions.data() + stage.last;
  if (stage.unit == Unit::kTask)
    return last[-1].op().run_tasks(context_, last[-1], last - first > 1 ? first : nullptr, begin, end, thread);
  for (int32_t unit = begin; unit < end; ++unit) {
    const RowRange rows = stage.unit == Unit::kBand ? take_band(number, thread) : RowRange{unit, 1};
    for (const Instruction *i = first; i < last; ++i)
      i->op().run_rows(context_, *i, rows, thread);
  }
}

// A band that no thread has taken in this stage: first the thread's own, whose rows are in its core's cache. A stage has as
// many bands as units, so there is one.
RowRange Engine::take_band(int32_t stage, int32_t thread) {
  const std::vector<int64_t> &ends = context_.bands;
  const size_t count = ends.size(), home = static_cast<size_t>(thread) * count / static_cast<size_t>(context_.threads);
  std::atomic<bool> *taken = taken_.data() + static_cast<size_t>(stage) * count;
  size_t band = home;
  while (taken[band].exchange(true, std::memory_order_relaxed))
    band = (band + 1) % count;
  const int64_t first = band ? ends[band - 1] : 0;
  return {first, ends[band] - first};
}

} // namespace dsedge
