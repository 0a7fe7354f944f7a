// The flat program that a Graph becomes: instructions over numbered buffers. It is data from outside, and is checked
// whole before anything runs.
#pragma once

#include "kv_pool.hpp"
#include "weights.hpp"

#include <vector>

namespace dsedge {

enum class Op : int32_t { kEmbed, kNorm, kQuantize, kLinear, kStore, kAttention, kGate, kAdd, kSelect, kSoftcap, kRope };
constexpr int32_t kOps = 11;
constexpr int32_t kNone = -1;
constexpr int32_t kLogits = 0; // the buffer that the caller gives to each forward

// A part of a linear's rows: where they go, and their bias or none. `buffer` is none in a gated linear.
struct Part {
  int32_t buffer, rows, bias;
};

// Operands by kind; a buffer [rows, width] of floats unless it is called quantized.
//   embed      tokens → out: matrix, scale
//   norm       a → out, and quantized unless none: vector, heads, dim, eps, crest
//   quantize   a → quantized: crest
//   linear     quantized, or a where that is none → parts, plus b unless none: matrix. Gated, with `activation`: two
//              parts, interleaved → out, or quantized_out with crest unless none
//   store      turns a (queries, in place) and b (keys) unless `rope` is none, and puts b and c (values) into the ring
//   attention  a → out: heads, kv_heads, dim, layer, scale, softcap
//   gate       a, b → out: activation
//   add        a, b → out
//   select     a → out: the wanted rows
//   softcap    a → out
//   rope       a, in place: heads, dim, rotary, rope
struct Instruction {
  Op op;
  int32_t a, b, c, out, quantized, quantized_out, matrix, vector;
  int32_t heads, kv_heads, dim, rotary, rope, layer, gated, activation;
  float scale, eps, softcap, crest;
  std::vector<Part> parts;
};

struct Buffer {
  int64_t width;
  bool selected; // one row for each wanted one, not for each token
};

struct Program {
  std::vector<Instruction> instructions;
  std::vector<Buffer> buffers;
  std::vector<Buffer> quantized;
  std::vector<MatrixShape> matrices;
  std::vector<std::vector<float>> vectors;
  std::vector<int64_t> ropes; // pairs of each
  KvShape kv;
};

// Throws std::invalid_argument unless every operand of every instruction exists and fits.
void verify(const Program &program);

} // namespace dsedge
