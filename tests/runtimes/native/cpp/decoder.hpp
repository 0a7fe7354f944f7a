// A decoder of one layer with random weights, made by hand: what the C++ tests run.
#pragma once

#include "engine.hpp"

#include <cstring>

#include <random>

namespace dsedge::test {

constexpr int32_t kVocab = 50;

struct Sizes {
  int32_t hidden = 48, heads = 6, kv_heads = 2, dim = 24, rotary = 16, inner = 70;
  int64_t slots = 300, chunk = 40, window = 290, sinks = 3;
  KvFormat format = KvFormat::kFloat16;
};

inline Instruction step(Op op) {
  Instruction i{};
  i.op = op;
  i.a = i.b = i.c = i.out = i.quantized = i.quantized_out = i.matrix = i.vector = i.rope = kNone;
  i.heads = i.kv_heads = 1;
  i.scale = 1;
  return i;
}

// Buffers: logits, x, normed, q, k, v, mixed, wanted. Quantized: hidden, mixed, inner, wanted.
inline std::vector<Instruction> attention_steps(const Sizes &s) {
  Instruction embed = step(Op::kEmbed), norm = step(Op::kNorm), qkv = step(Op::kLinear), store = step(Op::kStore);
  Instruction attention = step(Op::kAttention), codes = step(Op::kQuantize), out = step(Op::kLinear);
  embed.matrix = 0, embed.out = 1;
  norm.a = 1, norm.out = 2, norm.quantized_out = 0, norm.vector = 0, norm.dim = s.hidden, norm.eps = 1e-5f;
  norm.crest = 4.5f;
  qkv.quantized = 0, qkv.matrix = 1;
  qkv.parts = {{3, s.heads * s.dim, kNone}, {4, s.kv_heads * s.dim, kNone}, {5, s.kv_heads * s.dim, kNone}};
  for (Instruction *i : {&store, &attention})
    i->heads = s.heads, i->kv_heads = s.kv_heads, i->dim = s.dim;
  store.a = 3, store.b = 4, store.c = 5, store.rope = 0, store.rotary = s.rotary;
  attention.a = 3, attention.out = 6, attention.scale = 0.2f;
  codes.a = 6, codes.quantized_out = 1, codes.crest = 4.5f;
  out.quantized = 1, out.matrix = 2, out.b = 1, out.parts = {{1, s.hidden, kNone}};
  return {embed, norm, qkv, store, attention, codes, out};
}

inline std::vector<Instruction> mlp_steps(const Sizes &s) {
  Instruction norm = step(Op::kNorm), gated = step(Op::kLinear), down = step(Op::kLinear), select = step(Op::kSelect);
  Instruction codes = step(Op::kQuantize), head = step(Op::kLinear), cap = step(Op::kSoftcap);
  norm.a = 1, norm.out = 2, norm.quantized_out = 0, norm.vector = 0, norm.heads = 3, norm.dim = s.hidden / 3;
  norm.vector = 1, norm.eps = 1e-5f, norm.crest = 4.5f;
  gated.quantized = 0, gated.matrix = 3, gated.gated = 1, gated.quantized_out = 2, gated.crest = 4.5f;
  gated.activation = 1;
  gated.parts = {{kNone, s.inner, 2}, {kNone, s.inner, kNone}};
  down.quantized = 2, down.matrix = 4, down.b = 1, down.parts = {{1, s.hidden, kNone}};
  select.a = 1, select.out = 7;
  codes.a = 7, codes.quantized_out = 3;
  head.quantized = 3, head.matrix = 5, head.parts = {{0, kVocab, kNone}};
  cap.a = cap.out = 0, cap.softcap = 30;
  return {norm, gated, down, select, codes, head, cap};
}

inline Program make_program(const Sizes &s = {}) {
  Program p;
  p.instructions = attention_steps(s);
  for (Instruction &i : mlp_steps(s))
    p.instructions.push_back(i);
  p.buffers = {{kVocab, true},          {s.hidden, false},         {s.hidden, false},        {s.heads * s.dim, false},
               {s.kv_heads * s.dim, false}, {s.kv_heads * s.dim, false}, {s.heads * s.dim, false}, {s.hidden, true}};
  p.quantized = {{s.hidden, false}, {s.heads * s.dim, false}, {s.inner, false}, {s.hidden, true}};
  p.matrices = {{32, 0, Kind::kRaw, s.hidden, {kVocab}, false},
                {4, 32, Kind::kSym, s.hidden, {s.heads * s.dim, s.kv_heads * s.dim, s.kv_heads * s.dim}, false},
                {4, 64, Kind::kZp, s.heads * s.dim, {s.hidden}, false},
                {4, 32, Kind::kAffine, s.hidden, {s.inner, s.inner}, true},
                {4, 128, Kind::kSym, s.inner, {s.hidden}, false},
                {8, 32, Kind::kSym, s.hidden, {kVocab}, false}};
  p.vectors = {std::vector<float>(static_cast<size_t>(s.hidden), 1.0f), std::vector<float>(static_cast<size_t>(s.hidden / 3), 1.5f), std::vector<float>(static_cast<size_t>(s.inner), 0.1f)};
  p.ropes = {s.rotary / 2};
  p.kv = {2, s.chunk, s.kv_heads, s.dim, {{s.slots, s.window, s.sinks}}, {0}, {s.format}};
  return p;
}

// Fills every matrix with random codes and small scales.
inline void fill(Engine &engine) {
  std::mt19937 random(7);
  const Program &program = engine.program();
  for (size_t m = 0; m < program.matrices.size(); ++m) {
    const int32_t matrix = static_cast<int32_t>(m);
    const RowBytes bytes = engine.row_bytes(matrix);
    for (size_t part = 0; part < program.matrices[m].parts.size(); ++part) {
      const int64_t rows = program.matrices[m].parts[part];
      std::vector<uint8_t> codes(static_cast<size_t>(rows * bytes.codes)), extra(static_cast<size_t>(rows * bytes.extra));
      std::vector<uint16_t> scales(static_cast<size_t>(rows * bytes.scales / 2), 0x2c00); // 1/16
      for (uint8_t &code : codes)
        code = static_cast<uint8_t>(random());
      for (uint8_t &byte : extra)
        byte = static_cast<uint8_t>(random() % 44); // as halves: below 0.1
      if (program.matrices[m].kind == Kind::kRaw)
        for (size_t i = 0; i < codes.size() / 4; ++i) {
          const float value = static_cast<float>(static_cast<int32_t>(random() % 2001) - 1000) / 500;
          std::memcpy(codes.data() + i * 4, &value, 4);
        }
      engine.pack(matrix, static_cast<int32_t>(part), {0, rows, codes.data(), scales.data(), extra.data()});
    }
  }
}

// One sequence on an engine, with the bookkeeping of a ring that goes round.
class Sequence {
public:
  explicit Sequence(Engine &engine, int64_t index = 0)
      : engine_(engine), index_(index), ring_(engine.program().kv.rings[0]), held_(static_cast<size_t>(ring_.slots), -1) {}

  // Logits of every token, all of them so many times.
  std::vector<float> feed(const std::vector<int32_t> &tokens, int64_t times = 1) {
    const int64_t count = static_cast<int64_t>(tokens.size()), filled = std::min(length_, ring_.slots);
    const size_t pairs = tokens.size() * static_cast<size_t>(engine_.program().ropes[0]);
    std::vector<float> cos(pairs, 0.8f), sin(pairs, 0.6f);
    std::vector<float> logits(tokens.size() * kVocab * static_cast<size_t>(times));
    Forward f;
    f.segments = {{index_, 0, count, length_, {{held_.data(), filled}}}};
    f.tokens = tokens.data();
    f.rows = count;
    f.angles = {{cos.data(), sin.data()}};
    for (int64_t row = 0; row < count * times; ++row)
      f.wanted.push_back(row % count);
    f.logits = logits.data();
    engine_.forward(f);
    std::vector<int64_t> targets;
    for (int64_t p = length_; p < length_ + count; ++p) {
      targets.push_back(p < ring_.slots ? p : ring_.sinks + (p - ring_.sinks) % (ring_.slots - ring_.sinks));
      held_[static_cast<size_t>(targets.back())] = p;
    }
    engine_.kv().store(index_, 0, targets, filled);
    length_ += count;
    return logits;
  }

private:
  Engine &engine_;
  int64_t index_, length_ = 0;
  const RingShape ring_;
  std::vector<int64_t> held_;
};

} // namespace dsedge::test
