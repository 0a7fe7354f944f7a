// Buffers of activations, and what a thread needs for itself. They grow to the largest forward and stay.
#pragma once

#include "memory.hpp"
#include "program.hpp"

namespace dsedge {

// Scratch of one thread.
struct Scratch {
  uint8_t *panel;                         // a panel unpacked: bytes, or floats
  float *results, *others;                // [rows][32] of one panel; of its gate's partner
  float *queries, *local, *sums;          // an attention tile: [pairs][padded], mix, [4][pairs]
  float *scores, *converted;              // as in AttentionTile
  int64_t *positions;                     // [pairs]
  float *own_row;                         // a row of any buffer that this thread makes for itself, and
  QuantRows own_codes;                    // its codes
  QuantRows input;                        // what the linear `read_by` reads of rows from `read_from` on
  Flagged flagged;                        // its flagged blocks
  int64_t read_by = -1, read_from = 0;    // read_by: number of an instruction, counted on from run to run
};

// Finds the flagged blocks of the first `rows` rows.
void find_flagged(const QuantRows &x, int64_t rows, const Flagged &found);

class Activations {
public:
  Activations(const Program &program, int32_t threads);

  // Room for `rows` tokens and `wanted` selected rows. Throws std::bad_alloc or, for more than any memory,
  // std::invalid_argument, and then leaves everything as it was.
  void reserve(int64_t rows, int64_t wanted);
  void bind_logits(float *logits) { views_.floats[kLogits] = logits; }
  float *row(int32_t buffer, int64_t row) const {
    return views_.floats[static_cast<size_t>(buffer)] + row * program_.buffers[static_cast<size_t>(buffer)].width;
  }
  const QuantRows &quantized(int32_t id) const { return views_.quantized[static_cast<size_t>(id)]; }
  Scratch &scratch(int32_t thread) { return views_.scratch[static_cast<size_t>(thread)]; }
  // Most (query, head) pairs of an attention tile.
  int64_t pairs() const { return pairs_; }

private:
  class Carver;
  struct Views { // what lies in the memory
    std::vector<float *> floats;
    std::vector<QuantRows> quantized;
    std::vector<Scratch> scratch;
  };
  Views carve(Carver &carver, int64_t rows, int64_t wanted) const;

  const Program &program_;
  const int32_t threads_;
  int64_t pairs_ = kGroupedQueries, panel_bytes_ = 0, padded_ = 0;
  int64_t rows_ = 0, wanted_ = 0;
  Memory memory_;
  Views views_;
};

} // namespace dsedge
