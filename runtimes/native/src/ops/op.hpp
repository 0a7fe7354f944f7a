// All that scheduler, decoder and engine know of an op: one record, exported by ops/<name>.cpp. ops/table.cpp lists the
// records in the order of ../../program.def.
#pragma once

#include "context.hpp"

namespace dsedge {

// Multiply-adds of a row, and of a row with each position that it sees. Other operations are not counted.
struct Cost {
  double row = 0, position = 0;
  int32_t ring = kNone; // that the positions are of
};

struct Op {
  const char *name;

  // Whether all buffers have the same rows: all, or the wanted ones.
  bool one_set_of_rows = true;
  // Whether a row's result depends on what earlier instructions did with other rows.
  bool sees_other_rows = false;
  // Whether its tasks can compute the codes of a lone row themselves, by `make_codes` of the instruction before.
  bool makes_input = false;

  // Throws std::invalid_argument unless the operands fit each other.
  void (*verify)(const Checker &check, const Instruction &) = nullptr;
  Cost (*cost)(const Program &, const Instruction &) = nullptr;
  // Does all of the work on some rows, on one thread. It must not throw, nor must run_tasks and make_codes.
  void (*run_rows)(Context &, const Instruction &, RowRange rows, int32_t thread) = nullptr;

  // The rest may be nullptr.
  // Raises `room` to what a thread needs as scratch.
  void (*reserve)(const Program &, const Instruction &, Room &room) = nullptr;
  // Before a forward: prepares what the op needs for it. May throw std::invalid_argument; the engine is then usable as before.
  void (*plan)(Context &, const Instruction &, const Forward &) = nullptr;
  // For an op whose work can be cut otherwise than by rows: how many tasks there are, and the running of some. A `lead` is
  // the instruction before, whose work on the lone row each thread does first, for itself.
  int64_t (*tasks)(const Context &, const Instruction &) = nullptr;
  void (*run_tasks)(Context &, const Instruction &, const Instruction *lead, int32_t begin, int32_t end,
                    int32_t thread) = nullptr;
  // Whether this may be the lead of `next` where there is one row: `leads` in general, `leads_now` in this forward.
  bool (*leads)(const Instruction &, const Instruction &next) = nullptr;
  bool (*leads_now)(const Context &, const Instruction &next) = nullptr;
  // For an op that writes codes and leads: computes row 0 into `codes`, and its floats, if it writes some, into `out`.
  void (*make_codes)(const Context &, const Instruction &, float *out, const QuantRows &codes) = nullptr;
};

// The record of a kind, by the index of its operands.
const Op &op_at(size_t kind);

// Throws std::invalid_argument where two instructions write the keys of one layer, as others could still attend to the
// first ones, and where one attends to a layer before its keys are written.
void verify_layers(const Program &program);

inline Cost no_products(const Program &, const Instruction &) { return {}; }

inline bool contains(const std::vector<int32_t> &ids, int32_t id) {
  for (int32_t other : ids)
    if (other == id)
      return true;
  return false;
}
// Whether two lists have no buffer in common.
inline bool disjoint(const std::vector<int32_t> &a, const std::vector<int32_t> &b) {
  for (int32_t id : a)
    if (contains(b, id))
      return false;
  return true;
}

} // namespace dsedge
