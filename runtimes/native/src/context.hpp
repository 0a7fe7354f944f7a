// What ops see of the engine and of the forward that runs.
#pragma once

#include "activations.hpp"
#include "attention_plan.hpp"

#include <atomic>

namespace dsedge {

// cos and sin of one rope for every row of a forward, [rows][pairs].
struct Angles {
  const float *cos, *sin;
};

// Rows first … first + count - 1 of a forward, or of those that are wanted.
struct RowRange {
  int64_t first, count;
};

struct Forward {
  std::vector<Segment> segments;
  const int32_t *tokens; // of all segments, one after another
  int64_t rows;
  std::vector<Angles> angles;
  std::vector<int64_t> wanted; // rows whose logits are asked for
  float *logits;               // [wanted][vocabulary]
};

// How a forward's attention is cut into tasks, by AttentionCut, and partial results of the instruction that runs.
struct AttentionPlans {
  std::vector<AttentionCut> cuts;
  std::vector<AttentionPlan> plans; // of each cut
  std::vector<int64_t> made_in;     // the forward that each plan is of
  std::vector<float> partials;
  std::vector<std::atomic<int32_t>> done; // tasks of a tile that are
  // Attention that is to be told, [kv heads][new rows][rows] for each view that wants it, of all layers of its ring.
  std::vector<float> paid;
  std::vector<int64_t> paid_at; // where that of each segment and ring begins, [segments][rings]

  // The index of a cut, -1: it is not there.
  int32_t find(const AttentionCut &cut) const;
  const AttentionPlan &of(const AttentionCut &cut) const { return plans[static_cast<size_t>(find(cut))]; }
};

// A thread's scratch for a mixture of experts. rows[starts[e]] … rows[starts[e + 1] - 1] have chosen expert e, and `slots`
// of the same index is the expert's place among those of its row.
struct ExpertScratch {
  std::vector<int64_t> starts, rows, slots;
  int64_t read_by = -1, read_from = 0; // the instruction and first row that these lists are of, as in Scratch
  std::vector<double> scores, ranks, best;
  std::vector<int32_t> order;
  std::vector<int8_t> hi, lo; // gathered rows
  std::vector<Block> blocks;
  std::vector<uint8_t> flags;
  std::vector<uint32_t> flagged;
  std::vector<float> floats;
};

struct Context {
  const Program &program;
  const Kernels &kernels;
  std::vector<Matrix> matrices;
  Memory weights;
  KvPool kv;
  Activations activations;
  AttentionPlans attention;
  int32_t threads;
  std::vector<ExpertScratch> experts; // of each thread
  std::vector<int64_t> bands;     // where bands of rows end; empty: rows are not cut into bands
  const Forward *forward = nullptr;
  int64_t forwards = 0;           // so far
  std::atomic<bool> lost{false};  // a key or a value could not be kept in the forward that runs

  // Throws std::invalid_argument for weights larger than any memory, std::bad_alloc.
  Context(const Program &program, const Kernels &kernels, int32_t threads, int32_t kv_file);

  float *row(int32_t buffer, int64_t row) const { return activations.row(buffer, row); }
  int64_t width(int32_t buffer) const { return program.buffer(buffer).width; }
  const Matrix &matrix(int32_t id) const { return matrices[static_cast<size_t>(id)]; }
  const float *vector(int32_t id) const { return program.vectors[static_cast<size_t>(id)].data(); }
  // The rows of an instruction's buffers, which all have the same; for select, the rows of its output.
  RowRange rows_of(const Instruction &i) const;
  // Rotates heads of a token by its position. kNone: not at all.
  void rotate(int32_t rope, int64_t row, int64_t heads, int64_t dim, float *x) const;
  // Which segment a row belongs to.
  const Segment &segment_of(int64_t row) const;
  // A number for each instruction of each forward, none of which repeats.
  int64_t number_of(const Instruction &i) const;
};

} // namespace dsedge
