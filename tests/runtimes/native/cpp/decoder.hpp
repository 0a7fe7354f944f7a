// A decoder of one layer with random weights, made by hand: what the C++ tests run.
#pragma once

#include "engine.hpp"

#include <cstring>

#include <random>

namespace dsedge::test {

constexpr int32_t kVocab = 50;

struct Sizes {
  int32_t hidden = 48, heads = 6, kv_heads = 2, dim = 24, rotary = 16, inner = 70;
  int64_t slots = 400, window = 290, sinks = 3; // slots: of a sequence, of which there are two
  KvFormat format = KvFormat::kFloat16;
  bool latent = false; // attention over latents of `dim` numbers and keys of `rotary`
};

// Buffers: logits, x, normed, q, k, v, mixed, wanted; and the codes of hidden, mixed, inner, wanted.
enum : int32_t { kX = 1, kNormed, kQ, kK, kV, kMixed, kWanted, kHiddenCodes, kMixedCodes, kInnerCodes, kWantedCodes };

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
          GatedLinear{.input = {kHiddenCodes}, .output = {kInnerCodes}, .matrix = {3}, .biases = {{2, kNone}},
                      .activation = {1}, .crest = 4.5f},
          Linear{.input = {kInnerCodes}, .residual = {kX}, .outputs = {{kX}}, .matrix = {4}, .biases = {{kNone}}},
          Select{.input = {kX}, .output = {kWanted}},
          Quantize{.input = {kWanted}, .output = {kWantedCodes}, .crest = 0},
          Linear{.input = {kWantedCodes}, .outputs = {{0}}, .matrix = {5}, .biases = {{kNone}}},
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
      HeadLinear{.input = {codes}, .output = {absorbed}, .matrix = {6}, .heads = s.heads},
      KvWrite{.keys = {kK}, .values = {kV}, .layer = {0}, .rope = {0}},
      LatentAttention{.queries = {kQ}, .latent_queries = {absorbed}, .output = {mixed}, .layer = {0}, .heads = s.heads,
                      .rope = {0}, .scale = 0.002f},
      HeadLinear{.input = {mixed}, .output = {kMixed}, .matrix = {7}, .heads = s.heads}};
  p.instructions.erase(p.instructions.begin() + 2, p.instructions.begin() + 5);
  p.instructions.insert(p.instructions.begin() + 2, steps.begin(), steps.end());
  p.buffers[kQ].width = s.heads * s.rotary;
  p.buffers[kK].width = s.rotary;
  p.buffers[kV].width = s.dim;
  for (bool quantized : {false, true})
    p.buffers.push_back({s.heads * kNope, quantized, false});
  for (int n = 0; n < 2; ++n)
    p.buffers.push_back({s.heads * s.dim, false, false});
  p.matrices[1].rows = {s.heads * s.rotary, s.rotary, s.dim, s.heads * kNope};
  p.matrices.push_back({find_format("int4-sym"), 32, kNope, {s.heads * s.dim}, false});
  p.matrices.push_back({find_format("int8-sym"), 32, s.dim, {s.heads * s.dim}, false});
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
  p.matrices = {{find_format("float32"), 0, s.hidden, {kVocab}, false},
                {find_format("int4-sym"), 32, s.hidden, {q, kv, kv}, false},
                {find_format("int4-zp"), 64, q, {s.hidden}, false},
                {find_format("int4-affine"), 32, s.hidden, {s.inner, s.inner}, true},
                {find_format("int4-sym"), 128, s.inner, {s.hidden}, false},
                {find_format("int8-sym"), 32, s.hidden, {kVocab}, false}};
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
    const RowBytes bytes = engine.row_bytes(matrix);
    for (size_t part = 0; part < program.matrices[m].rows.size(); ++part) {
      const int64_t rows = program.matrices[m].rows[part];
      std::vector<uint8_t> codes(static_cast<size_t>(rows * bytes.codes)), extra(static_cast<size_t>(rows * bytes.extra));
      std::vector<uint16_t> scales(static_cast<size_t>(rows * bytes.scales / 2), 0x2c00); // 1/16
      for (uint8_t &code : codes)
        code = static_cast<uint8_t>(random());
      for (uint8_t &byte : extra)
        byte = static_cast<uint8_t>(random() % 44); // as halves: below 0.1
      if (!format_of(program.matrices[m].format).codes)
        for (size_t i = 0; i < codes.size() / 4; ++i) {
          const float value = static_cast<float>(static_cast<int32_t>(random() % 2001) - 1000) / 500;
          std::memcpy(codes.data() + i * 4, &value, 4);
        }
      engine.pack(matrix, static_cast<int32_t>(part), {0, rows, codes.data(), scales.data(), extra.data()});
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
    std::vector<float> logits(tokens.size() * kVocab * static_cast<size_t>(times));
    std::vector<int64_t> runs;
    for (int64_t p = 0; p < length_ + count; ++p)
      if (p < sinks_ || p > length_ - window_)
        runs.insert(runs.end(), {p, slot_of(p), 1});
    Forward f;
    f.segments = {{0, count, length_, {{runs.data(), static_cast<int64_t>(runs.size()) / 3, sinks_}}}};
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
