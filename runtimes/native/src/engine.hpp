// The interpreter: runs a verified program over packed weights, a KV pool and a pool of threads.
#pragma once

#include "activations.hpp"
#include "pool.hpp"
#include "schedule.hpp"

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

class Engine {
public:
  // Throws std::invalid_argument for a program that does not hold together, std::bad_alloc.
  Engine(Program program, const Kernels &kernels, int32_t threads);

  // All of these throw std::invalid_argument for what does not exist or fit.
  void pack(int32_t matrix, int32_t part, const SourceRows &rows);
  RowBytes row_bytes(int32_t matrix) const;
  // Where a key or a value cannot be kept (write_row), all logits become NaN.
  void forward(const Forward &forward);
  // Rows of a buffer after a forward, as many as it had or, of a buffer of selected rows, as were wanted:
  // `out` [rows][width].
  void read(int32_t buffer, int64_t rows, float *out) const;

  const Program &program() const { return program_; }
  KvPool &kv() { return kv_; }

private:
  struct Merges { // of the attention that is running: partial results, and how many parts of a tile are done
    std::vector<float> values;
    std::vector<std::atomic<int32_t>> done;
  };

  Memory lay_out_weights();
  void check(const Forward &forward) const;
  void plan(const Forward &forward);
  const Buffer &measure(const Instruction &instruction) const;
  void cut_stages();
  int32_t units(const Instruction &instruction) const;
  RowRange rows_of(const Buffer &buffer) const;
  RowRange take_block(int32_t stage, int32_t thread);
  void work(int32_t stage, int32_t begin, int32_t end, int32_t thread);
  void run_parts(const Instruction &instruction, const Instruction *before, int32_t begin, int32_t end, int32_t thread);
  void run_rows(const Instruction &instruction, RowRange rows, int32_t thread);
  void run_row(const Instruction &instruction, int64_t row);
  void rotate(const Instruction &instruction, int64_t row, int64_t heads, float *x) const;
  void store_row(const Instruction &instruction, int64_t row);
  void store_head(const Instruction &instruction, int64_t row, int64_t head, const float *key);
  void normalize(const Instruction &instruction, int64_t row, float *out, const QuantRows &quantized) const;
  void linear(const Instruction &instruction, const Instruction *before, int32_t begin, int32_t end, RowRange rows,
              int32_t thread);
  void read_input(const Instruction &instruction, const Instruction *before, RowRange rows, bool all, Scratch &scratch);
  void product(const Instruction &instruction, int64_t panel, RowRange rows, const Scratch &scratch, float *out);
  void put(const Instruction &instruction, int64_t panel, RowRange rows, float *results);
  void put_gated(const Instruction &instruction, int64_t unit, RowRange rows, const Scratch &scratch);
  void add_bias(int32_t bias, int64_t first, int64_t count, int64_t rows, float *results) const;
  const AttentionPlan &plan_of(const Instruction &attention) const;
  int64_t first_row(const AttentionTask &task) const;
  void attend(const Instruction &instruction, const Instruction *store, int64_t head, int64_t task, int32_t thread);
  void prepare(const Instruction &store, const AttentionTask &task, int64_t head, const AttentionTile &tile, float *key);
  AttentionTile tile(const Instruction &instruction, const AttentionTask &task, int64_t head, const Scratch &scratch);
  int64_t partial_size(const Instruction &attention) const;
  Softmax partial(const Instruction &instruction, int64_t index);
  void finish(const Instruction &instruction, const AttentionTask &task, int64_t head, const Softmax &state);

  const Program program_;
  const std::vector<bool> prepares_; // of each instruction
  const Kernels &kernels_;
  std::vector<Matrix> matrices_;
  Memory weights_;
  KvPool kv_;
  Activations activations_;
  std::vector<AttentionPlan> plans_; // of each ring
  Merges merges_;
  const Forward *now_ = nullptr;
  std::atomic<bool> lost_{false};           // a key or a value could not be kept in the forward that runs
  int64_t runs_ = 0;                        // forwards so far
  int64_t last_rows_ = 0, last_wanted_ = 0; // of the last forward
  std::vector<int64_t> blocks_;             // where blocks of rows end
  std::vector<Stage> stages_;
  std::vector<std::atomic<bool>> taken_; // of each stage's blocks
  Pool pool_; // last: its threads use all the rest
};

} // namespace dsedge
