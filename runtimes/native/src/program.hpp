// The flat program that a Graph becomes: instructions over numbered buffers (../program.def says which). It is data from
// outside, and is checked whole before anything runs.
#pragma once

#include "formats/formats.hpp"
#include "kv_pool.hpp"
#include "schema.hpp"

#include <type_traits>
#include <vector>

namespace dsedge {

struct Op;

constexpr int32_t kLogits = 0; // the buffer that the caller gives to each forward

struct Instruction {
  Operands operands;
  std::vector<int32_t> reads, writes; // buffers, by the types of the operands

  // Implicit: operands are an instruction.
  Instruction(Operands of);
  template <typename Kind>
    requires(std::is_class_v<Kind> && requires { Kind::kKind; })
  Instruction(Kind of) : Instruction(Operands(std::move(of))) {}
  const Op &op() const;
};

// The operands of an instruction of that kind.
template <typename Kind> const Kind &as(const Instruction &instruction) { return std::get<Kind>(instruction.operands); }

struct Program {
  std::vector<Instruction> instructions;
  std::vector<Buffer> buffers;
  std::vector<MatrixShape> matrices;
  std::vector<std::vector<float>> vectors;
  std::vector<int64_t> ropes; // pairs of each
  KvShape kv;

  const Buffer &buffer(int32_t id) const { return buffers[static_cast<size_t>(id)]; }
  const KvLayer &layer(int32_t id) const { return kv.layers[static_cast<size_t>(id)]; }
  const MatrixShape &matrix(int32_t id) const { return matrices[static_cast<size_t>(id)]; }
};

// The program of some named tables. Throws std::invalid_argument as `decode` does.
Program decode_program(const Fields &tables, std::vector<std::vector<float>> vectors);

// Throws std::invalid_argument unless every operand of every instruction exists and fits.
void verify(const Program &program);

// What an op's own check has to go by. Ids of operands are rows of their tables already, and numbers finite.
class Checker {
public:
  Checker(const Program &program, size_t index) : program(program), index_(index) {}

  // Throws std::invalid_argument.
  void require(bool fine, const char *what) const;
  const Buffer &floats(int32_t id) const; // a buffer, of floats
  const Buffer &codes(int32_t id) const;  // of codes
  void alike(std::initializer_list<int32_t> ids) const; // float buffers of one width
  // Whether a rope fits heads of that width.
  void rope(int32_t rope, int64_t dim) const;
  // A vector of each of these widths, or none.
  void biases(const MaybeVectorList &biases, const std::vector<int64_t> &widths) const;

  const Program &program;

private:
  size_t index_;
};

} // namespace dsedge
