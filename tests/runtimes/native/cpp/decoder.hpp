// A decoder of one layer with random weights, made by hand: what the C++ tests run.
#pragma once

#include "engine.hpp"

#include "simd/half.hpp"

#include <cstring>

#include <random>

namespace dsedge::test {

constexpr int32_t kVocab = 50;

struct Sizes {
  int32_t hidden = 48, heads = 6, kv_heads = 2, dim = 24, rotary = 16, inner = 70;
  int64_t slots = 400, window = 290, sinks = 3; // slots: of a sequence, of which there are two
  KvFormat format = KvFormat::kFloat16;
  bool latent = false; // attention over latents of `dim` numbers and keys of `rotary`
  bool mixed = false;  // matrices in runs of formats
};

// Buffers: logits, x, normed, q, k, v, mixed, wanted; and the codes of hidden, mixed, inner, wanted.
enum : int32_t { kX = 1, kNormed, kQ, kK, kV, kMixed, kWanted, kHiddenCodes, kMixedCodes, kInnerCodes, kWantedCodes };

// Weights that are of one format each.
inline MatrixShape in_one_format(const char *format, int32_t group, int64_t columns, std::vector<int64_t> rows) {
  MatrixShape m{columns, std::move(rows), {}};
  for (size_t n = 0; n < m.rows.size(); ++n)
    m.runs.push_back({static_cast<int32_t>(n), 0, m.rows[n], 0, columns, find_format(format), group});
  return m;
}

// Cuts the matrices of the decoder: rows on panels' ends and within them, columns of whole groups.
inline void cut_in_runs(std::vector<MatrixShape> &matrices) {
  const auto rows = [&](size_t matrix, size_t run, int64_t first, const char *format, int32_t group) {
    std::vector<RunShape> &runs = matrices[matrix].runs;
    RunShape rest = runs[run];
    rest.row = first;
    rest.rows -= first;
    runs[run].rows = first;
    runs[run].format = find_format(format);
    runs[run].group = group;
    runs.insert(runs.begin() + static_cast<std::ptrdiff_t>(run) + 1, rest);
  };
  const auto columns = [&](size_t matrix, int64_t first, const char *format, int32_t group) {
    std::vector<RunShape> &runs = matrices[matrix].runs;
    const RunShape whole = runs[0];
    runs = {{0, 0, whole.rows, 0, first, find_format(format), group},
            {0, 0, whole.rows, first, whole.columns - first, whole.format, whole.group}};
  };
  rows(0, 0, 20, "float16", 0);
  rows(1, 2, 16, "int4-affine", 64);
  rows(1, 1, 9, "int4-zp", 32);
  rows(1, 0, 32, "int8-sym", 32);
  columns(2, 64, "int8-sym", 32);
  rows(3, 0, 33, "int8-sym", 32);
  columns(5, 32, "int4-affine", 32);
  rows(6, 0, 1, "int4-sym", 32);
}

inline std::vector<Instruction> attention_steps() {
  return {Embed{.output = {kX}, .matrix = {0}, .scale = 1},
          Norm{.input = {kX}, .output = {kNormed}, .codes = {kHiddenCodes}, .weight = {0}, .eps = 1e-5f, .crest = 4.5f},
          Linear{.input = {kHiddenCodes}, .outputs = {{kQ, kK, kV}}, .matrix = {1}, .biases = {{kNone, kNone, kNone}}},
          KvWrite{.keys = {kK}, .values = {kV}, .layer = {0}, .rope = {0}},
          Attention{.queries = {kQ}, .output = {kMixed}, .layer = {0}, .heads = 6, .rope = {0}, .scale = 0.2f},
          Quantize{.input = {kMixed}, .output = {kMixedCodes}, .crest = 4.5f},
          Linear{.input = {kMixedCodes}, .residual = {kX}, .outputs = {{kX}}, .matrix = {2}, .biases = {{kNone}}}};
}

inline std::vector<Instruction> mlp_steps() {
  return {Norm{.input = {kX}, .output = {kNormed}, .codes = {kHiddenCodes}, .weight = {1}, .eps = 1e-5f, .crest = 4.5f},
          GatedLinear{.input = {kHiddenCodes}, .output = {kInnerCodes}, .gate = {3}, .up = {4}, .biases = {{2, kNone}},
                      .activation = {1}, .crest = 4.5f},
          Linear{.input = {kInnerCodes}, .residual = {kX}, .outputs = {{kX}}, .matrix = {5}, .biases = {{kNone}}},
          Select{.input = {kX}, .output = {kWanted}},
          Quantize{.input = {kWanted}, .output = {kWantedCodes}, .crest = 0},
          Linear{.input = {kWantedCodes}, .outputs = {{0}}, .matrix = {6}, .biases = {{kNone}}},
          Softcap{.input = {0}, .output = {0}, .cap = 30}};
}

// Makes latent attention of a program's attention. Further buffers: queries for the latents, their codes, the same times a
// matrix for each head, and mixed latents.
inline void attend_to_latents(Program &p, const Sizes &s) {
  constexpr int64_t kNope = 32;
  const int32_t nope = static_cast<int32_t>(p.buffers.size()), codes = nope + 1, absorbed = nope + 2, mixed = nope + 3;
  const std::vector<Instruction> steps = {
      Linear{.input = {kHiddenCodes}, .outputs = {{kQ, kK, kV, nope}}, .matrix = {1}, .biases = {{kNone, kNone, kNone, kNone}}},
      Quantize{.input = {nope}, .output = {codes}, .crest = 4.5f},
      HeadLinear{.input = {codes}, .output = {absorbed}, .matrix = {7}},
      KvWrite{.keys = {kK}, .values = {kV}, .layer = {0}, .rope = {0}},
      LatentAttention{.queries = {kQ}, .latent_queries = {absorbed}, .output = {mixed}, .layer = {0}, .heads = s.heads,
                      .rope = {0}, .scale = 0.002f},
      HeadLinear{.input = {mixed}, .output = {kMixed}, .matrix = {8}}};
  p.instructions.erase(p.instructions.begin() + 2, p.instructions.begin() + 5);
  p.instructions.insert(p.instructions.begin() + 2, steps.begin(), steps.end());
  p.buffers[kQ].width = s.heads * s.rotary;
  p.buffers[kK].width = s.rotary;
  p.buffers[kV].width = s.dim;
  for (bool quantized : {false, true})
    p.buffers.push_back({s.heads * kNope, quantized, false});
  for (int n = 0; n < 2; ++n)
    p.buffers.push_back({s.heads * s.dim, false, false});
  const std::vector<int64_t> heads(static_cast<size_t>(s.heads), s.dim);
  p.matrices[1] = in_one_format("int4-sym", 32, s.hidden, {s.heads * s.rotary, s.rotary, s.dim, s.heads * kNope});
  p.matrices.push_back(in_one_format("int4-sym", 32, kNope, heads));
  p.matrices.push_back(in_one_format("int8-sym", 32, s.dim, heads));
  p.kv.layers[0] = {0, 1, s.rotary, s.dim, s.format};
}

inline Program make_program(const Sizes &s = {}) {
  Program p;
  p.instructions = attention_steps();
  std::get<Attention>(p.instructions[4].operands).heads = s.heads;
  for (Instruction &i : mlp_steps())
    p.instructions.push_back(i);
  const int64_t q = s.heads * s.dim, kv = s.kv_heads * s.dim;
  p.buffers = {{kVocab, false, true}, {s.hidden, false, false}, {s.hidden, false, false}, {q, false, false},
               {kv, false, false},    {kv, false, false},       {q, false, false},        {s.hidden, false, true},
               {s.hidden, true, false}, {q, true, false},       {s.inner, true, false},   {s.hidden, true, true}};
  p.matrices = {in_one_format("float32", 0, s.hidden, {kVocab}),
                in_one_format("int4-sym", 32, s.hidden, {q, kv, kv}),
                in_one_format("int4-zp", 64, q, {s.hidden}),
                in_one_format("int4-affine", 32, s.hidden, {s.inner}),
                in_one_format("int4-affine", 32, s.hidden, {s.inner}),
                in_one_format("int4-sym", 128, s.inner, {s.hidden}),
                in_one_format("int8-sym", 32, s.hidden, {kVocab})};
  if (s.mixed)
    cut_in_runs(p.matrices);
  p.vectors = {std::vector<float>(static_cast<size_t>(s.hidden), 1.0f), std::vector<float>(static_cast<size_t>(s.hidden / 3), 1.5f),
               std::vector<float>(static_cast<size_t>(s.inner), 0.1f)};
  p.ropes = {s.rotary / 2};
  p.kv = {{{2 * s.slots, s.window}}, {{0, s.kv_heads, s.dim, s.dim, s.format}}};
  if (s.latent)
    attend_to_latents(p, s);
  return p;
}

// Fills every matrix with random codes and small scales.
inline void fill(Engine &engine) {
  std::mt19937 random(7);
  const Program &program = engine.program();
  for (size_t m = 0; m < program.matrices.size(); ++m) {
    const int32_t matrix = static_cast<int32_t>(m);
    for (size_t n = 0; n < program.matrices[m].runs.size(); ++n) {
      const RunShape &run = program.matrices[m].runs[n];
      const RowBytes bytes = engine.row_bytes(matrix, static_cast<int32_t>(n));
      const int64_t rows = run.rows;
      std::vector<uint8_t> codes(static_cast<size_t>(rows * bytes.codes)), extra(static_cast<size_t>(rows * bytes.extra));
      std::vector<uint16_t> scales(static_cast<size_t>(rows * bytes.scales / 2), 0x2c00); // 1/16
      for (uint8_t &code : codes)
        code = static_cast<uint8_t>(random());
      for (uint8_t &byte : extra)
        byte = static_cast<uint8_t>(random() % 44); // as halves: below 0.1
      const size_t size = static_cast<size_t>(format_of(run.format).bits / 8);
      if (!format_of(run.format).codes)
        for (size_t i = 0; i < codes.size() / size; ++i) {
          const float value = static_cast<float>(static_cast<int32_t>(random() % 2001) - 1000) / 500;
          const uint16_t half = float_to_half(value);
          std::memcpy(codes.data() + i * size, size == 4 ? static_cast<const void *>(&value) : &half, size);
        }
      engine.pack(matrix, static_cast<int32_t>(n), {0, rows, codes.data(), scales.data(), extra.data()});
    }
  }
}

// One sequence on an engine, in a half of its slots: a ring of blocks of 16 that goes round, behind one that stays.
class Sequence {
public:
  explicit Sequence(Engine &engine, const Sizes &sizes = {}, int64_t half = 0)
      : engine_(engine), slots_(sizes.slots), window_(sizes.window), sinks_(sizes.sinks), base_(half * sizes.slots) {}

  // Logits of every token, all of them so many times.
  std::vector<float> feed(const std::vector<int32_t> &tokens, int64_t times = 1) {
    const int64_t count = static_cast<int64_t>(tokens.size());
    const size_t pairs = tokens.size() * static_cast<size_t>(engine_.program().ropes[0]);
    std::vector<float> cos(pairs, 0.8f), sin(pairs, 0.6f);
    const size_t width = static_cast<size_t>(engine_.program().buffer(kLogits).width);
    std::vector<float> logits(tokens.size() * width * static_cast<size_t>(times));
    std::vector<int64_t> runs;
    for (int64_t p = 0; p < length_ + count; ++p)
      if (p < sinks_ || p > length_ - window_)
        runs.insert(runs.end(), {p, slot_of(p), 1});
    Forward f;
    f.segments = {{0, count, length_, {{runs.data(), static_cast<int64_t>(runs.size()) / 3, window_, sinks_}}}};
    f.tokens = tokens.data();
    f.rows = count;
    f.angles = {{cos.data(), sin.data()}};
    for (int64_t row = 0; row < count * times; ++row)
      f.wanted.push_back(row % count);
    f.logits = logits.data();
    engine_.forward(f);
    length_ += count;
    return logits;
  }

  int64_t slot_of(int64_t position) const {
    return base_ + (position < 16 ? position : 16 + (position - 16) % (slots_ - 16));
  }

private:
  Engine &engine_;
  const int64_t slots_, window_, sinks_, base_;
  int64_t length_ = 0;
};

} // namespace dsedge::test
