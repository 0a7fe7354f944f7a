// The interpreter: runs a verified program over packed weights, a KV pool and a pool of threads.
#pragma once

#include "context.hpp"
#include "pool.hpp"
#include "schedule.hpp"

namespace dsedge {

class Engine {
public:
  // Keys and values lie in an empty file, where one is given. Throws std::invalid_argument for a program that does not
  // hold together, std::bad_alloc.
  Engine(Program program, const Kernels &kernels, int32_t threads, int32_t kv_file = kNoFile);

  // All of these throw std::invalid_argument for what does not exist or fit.
  void pack(int32_t matrix, int32_t run, const SourceRows &rows);
  RowBytes row_bytes(int32_t matrix, int32_t run) const;
  // Where a key or a value cannot be kept (write_row), all logits become NaN.
  void forward(const Forward &forward);
  // Rows of a buffer of floats after a forward, as many as it had or, of a buffer of wanted rows, as were wanted:
  // `out` [rows][width].
  void read(int32_t buffer, int64_t rows, float *out) const;

  const Program &program() const { return program_; }
  KvPool &kv() { return context_.kv; }
  // What the packed matrices take.
  int64_t weight_bytes() const;

private:
  const Run &run_of(int32_t matrix, int32_t run) const;
  void check(const Forward &forward) const;
  void check_writes(const Forward &forward) const;
  void reserve_attention(const Forward &forward);
  void tell_attention(const Forward &forward) const;
  void work(int32_t stage, int32_t begin, int32_t end, int32_t thread);
  RowRange take_band(int32_t stage, int32_t thread);

  const Program program_;
  const std::vector<bool> leads_; // of each instruction
  Context context_;
  int64_t last_rows_ = 0, last_wanted_ = 0; // of the last forward
  std::vector<Stage> stages_;
  std::vector<std::atomic<bool>> taken_; // bands, of each stage
  Pool pool_; // last: its threads use all the rest
};

} // namespace dsedge
