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

Engine::Engine(Program program, const Kernels &kernels, int32_t threads)
    : program_(verified(std::move(program), threads)), prepares_(find_preparing(program_)), kernels_(kernels), weights_(lay_out_weights()),
      kv_(program_.kv, kernels), activations_(program_, threads), plans_(program_.kv.rings.size()),
      pool_(threads, static_cast<int32_t>(program_.instructions.size()),
            [this](int32_t phase, int32_t begin, int32_t end, int32_t thread) { work(phase, begin, end, thread); }) {}

// Fills matrices_; the memory that they lie in.
Memory Engine::lay_out_weights() {
  int64_t bytes = 0;
  for (const MatrixShape &shape : program_.matrices) {
    matrices_.push_back(lay_out(shape));
    const Matrix &m = matrices_.back();
    require(m.panels <= kMostUnits && m.panel_bytes < int64_t{1} << 40, "engine: a matrix larger than any memory");
    bytes += m.panels * m.panel_bytes;
    require(bytes < int64_t{1} << 46, "engine: weights larger than any memory");
  }
  Memory weights(bytes, true);
  uint8_t *at = weights.data();
  for (Matrix &m : matrices_) {
    m.data = at;
    at += m.panels * m.panel_bytes;
  }
  return weights;
}

RowBytes Engine::row_bytes(int32_t matrix) const {
  require(matrix >= 0 && static_cast<size_t>(matrix) < matrices_.size(), "engine: no such matrix");
  return dsedge::row_bytes(matrices_[static_cast<size_t>(matrix)]);
}

void Engine::pack(int32_t matrix, int32_t part, const SourceRows &rows) {
  row_bytes(matrix);
  const MatrixShape &shape = program_.matrices[static_cast<size_t>(matrix)];
  require(part >= 0 && static_cast<size_t>(part) < shape.parts.size(), "engine: no such part of a matrix");
  require(rows.first >= 0 && rows.count >= 0 && rows.first <= shape.parts[static_cast<size_t>(part)] - rows.count,
          "engine: rows that the matrix does not have");
  dsedge::pack(matrices_[static_cast<size_t>(matrix)], shape, part, rows);
}

void Engine::read(int32_t buffer, int64_t rows, float *out) const {
  require(buffer > kLogits && static_cast<size_t>(buffer) < program_.buffers.size(), "engine: no such buffer");
  const Buffer &known = program_.buffers[static_cast<size_t>(buffer)];
  const int64_t width = known.width;
  require(rows >= 0 && rows <= (known.selected ? last_wanted_ : last_rows_), "engine: rows that the last forward had not");
  std::memcpy(out, activations_.row(buffer, 0), static_cast<size_t>(rows * width) * 4);
}

void Engine::check(const Forward &f) const {
  require(f.rows > 0 && f.rows <= kMostUnits && !f.wanted.empty(), "forward: no tokens, or far too many");
  require(static_cast<int64_t>(f.wanted.size()) <= kMostUnits, "forward: far too many wanted rows");
  require(f.angles.size() == program_.ropes.size(), "forward: angles of each rope are needed");
  for (int64_t row : f.wanted)
    require(row >= 0 && row < f.rows, "forward: a wanted row that is not there");
  int64_t rows = 0;
  std::vector<bool> seen(static_cast<size_t>(program_.kv.sequences));
  for (const Segment &segment : f.segments) {
    require(segment.sequence >= 0 && segment.sequence < program_.kv.sequences, "forward: no such sequence");
    require(!seen[static_cast<size_t>(segment.sequence)], "forward: two segments of one sequence");
    require(segment.row == rows && segment.count > 0 && segment.position >= 0 && segment.position < int64_t{1} << 40,
            "forward: rows or positions that do not follow");
    require(segment.rings.size() == program_.kv.rings.size(), "forward: a view of each ring is needed");
    for (size_t ring = 0; ring < segment.rings.size(); ++ring) {
      const int64_t filled = segment.rings[ring].filled;
      require(filled >= 0 && filled <= program_.kv.rings[ring].slots && segment.count <= program_.kv.chunk,
              "forward: more held or new rows than the ring has room for");
    }
    seen[static_cast<size_t>(segment.sequence)] = true;
    rows += segment.count;
  }
  require(rows == f.rows, "forward: segments of other tokens");
  for (const Instruction &instruction : program_.instructions)
    if (instruction.op == Op::kEmbed)
      for (int64_t i = 0; i < f.rows; ++i)
        require(f.tokens[i] >= 0 && f.tokens[i] < program_.matrices[static_cast<size_t>(instruction.matrix)].parts[0],
                "forward: a token outside the vocabulary");
}

void Engine::forward(const Forward &f) {
  check(f);
  plan(f);
  last_rows_ = last_wanted_ = 0; // until it is through
  activations_.reserve(f.rows, static_cast<int64_t>(f.wanted.size()));
  activations_.bind_logits(f.logits);
  now_ = &f;
  ++runs_;
  cut_stages();
  std::vector<int32_t> units;
  for (const Stage &stage : stages_)
    units.push_back(stage.units);
  lost_.store(false, std::memory_order_relaxed);
  pool_.run(units);
  if (lost_.load(std::memory_order_relaxed)) // attention does not always show it
    std::fill_n(f.logits, f.wanted.size() * static_cast<size_t>(program_.buffers[kLogits].width), std::nanf(""));
  now_ = nullptr;
  last_rows_ = f.rows;
  last_wanted_ = static_cast<int64_t>(f.wanted.size());
}

void Engine::run_row(const Instruction &i, int64_t row) {
  const auto x = [&](int32_t buffer) { return activations_.row(buffer, row); };
  const auto width = [&](int32_t buffer) { return program_.buffers[static_cast<size_t>(buffer)].width; };
  switch (i.op) {
  case Op::kEmbed:
    return read_row(matrices_[static_cast<size_t>(i.matrix)], now_->tokens[row], i.scale, x(i.out));
  case Op::kNorm:
  case Op::kQuantize:
    return normalize(i, row, i.op == Op::kNorm ? x(i.out) : nullptr,
                     i.quantized_out == kNone ? QuantRows{} : activations_.quantized(i.quantized_out).from(row));
  case Op::kStore:
    return store_row(i, row);
  case Op::kGate:
    return kernels_.gate(x(i.a), x(i.b), width(i.a), i.activation, x(i.out));
  case Op::kAdd: {
    const float *a = x(i.a), *b = x(i.b);
    float *out = x(i.out);
    for (int64_t n = 0; n < width(i.a); ++n)
      out[n] = a[n] + b[n];
    return;
  }
  case Op::kSelect:
    std::memcpy(x(i.out), activations_.row(i.a, now_->wanted[static_cast<size_t>(row)]),
                static_cast<size_t>(width(i.a)) * 4);
    return;
  case Op::kSoftcap:
    return kernels_.softcap(x(i.a), width(i.a), i.softcap, x(i.out));
  case Op::kRope:
    return rotate(i, row, i.heads, x(i.a));
  case Op::kLinear:
  case Op::kAttention:
    return;
  }
}

// What a norm or a quantization makes of a row; `out` and `quantized` are those of the row.
void Engine::normalize(const Instruction &i, int64_t row, float *out, const QuantRows &quantized) const {
  const float *x = activations_.row(i.a, row);
  if (i.op == Op::kNorm) {
    kernels_.norm(x, program_.vectors[static_cast<size_t>(i.vector)].data(), i.heads, i.dim, i.eps, out);
    x = out;
  }
  if (i.quantized_out != kNone)
    kernels_.quantize(x, program_.buffers[static_cast<size_t>(i.a)].width, i.crest, quantized, 0);
}

void Engine::rotate(const Instruction &i, int64_t row, int64_t heads, float *x) const {
  if (i.rope == kNone)
    return;
  const Angles &angles = now_->angles[static_cast<size_t>(i.rope)];
  const int64_t at = row * i.rotary / 2;
  kernels_.rope(x, heads, i.dim, i.rotary, angles.cos + at, angles.sin + at);
}

void Engine::store_row(const Instruction &i, int64_t row) {
  float *key = activations_.row(i.b, row);
  rotate(i, row, i.heads, activations_.row(i.a, row));
  rotate(i, row, i.kv_heads, key);
  for (int32_t head = 0; head < i.kv_heads; ++head)
    store_head(i, row, head, key + head * i.dim);
}

// Keeps a key, turned already, and its value.
void Engine::store_head(const Instruction &i, int64_t row, int64_t head, const float *key) {
  const auto after = std::upper_bound(now_->segments.begin(), now_->segments.end(), row,
                                      [](int64_t r, const Segment &segment) { return r < segment.row; });
  const Segment &segment = *(after - 1);
  const size_t ring = program_.kv.ring_of(i.layer);
  const int64_t slot = segment.rings[ring].filled + row - segment.row;
  const HeadStore store = kv_.head(segment.sequence, i.layer, static_cast<int32_t>(head));
  if (!kernels_.write_row(store, slot, key, activations_.row(i.c, row) + head * i.dim))
    lost_.store(true, std::memory_order_relaxed);
}

} // namespace dsedge
