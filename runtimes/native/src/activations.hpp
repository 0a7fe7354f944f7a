// Buffers of activations and scratch of threads. They grow to the largest forward so far and never shrink.
#pragma once

#include "memory.hpp"
#include "program.hpp"

namespace dsedge {

// The largest scratch that any instruction needs of a thread.
struct Room {
  int64_t panel_bytes = 0;                           // a panel of a matrix, unpacked
  int64_t tile_rows = 0, query_stride = 0, padded = 0; // a tile of attention; sizes of a head in whole lines
};

// Scratch of one thread.
struct Scratch {
  uint8_t *panel;                 // a panel unpacked: bytes, or floats
  float *results, *others;        // [rows][32]: products with a panel; with the second one of a gated linear
  float *term;                    // [rows][32]: products with one run of a panel, before they are added
  float *queries, *local, *sums;  // an attention tile: [tile rows][query stride], two of [tile rows][padded], [4][tile rows]
  float *scores, *converted;      // as in AttentionTile
  int64_t *positions;             // [tile rows]
  float *own_row;                 // a row that this thread computes for itself, and
  QuantRows own_codes;            // its codes
  QuantRows input;                // codes of rows from `read_from` on, as instruction number `read_by` reads them
  uint32_t *flagged;              // their flagged blocks
  int64_t read_by = -1, read_from = 0; // read_by: as Context::number_of counts
};

// Finds the flagged blocks of the first `rows` rows, [tiles_of(rows)][blocks]: bit t of a number says whether that block of
// row t of the tile is flagged.
void find_flagged(const QuantRows &x, int64_t rows, uint32_t *found);

class Activations {
public:
  Activations(const Program &program, int32_t threads);

  // Room for `rows` tokens and `wanted` rows. Throws std::bad_alloc or, for more than any memory, std::invalid_argument,
  // and then leaves everything as it was.
  void reserve(int64_t rows, int64_t wanted);
  void bind_logits(float *logits) { views_.floats[kLogits] = logits; }
  // A row of a buffer of floats.
  float *row(int32_t buffer, int64_t row) const {
    return views_.floats[static_cast<size_t>(buffer)] + row * program_.buffer(buffer).width;
  }
  // All rows of a buffer of codes.
  const QuantRows &codes(int32_t buffer) const { return views_.codes[static_cast<size_t>(buffer)]; }
  Scratch &scratch(int32_t thread) { return views_.scratch[static_cast<size_t>(thread)]; }
  const Room &room() const { return room_; }

private:
  class Carver;
  struct Views { // what lies in the memory; of each buffer the one or the other
    std::vector<float *> floats;
    std::vector<QuantRows> codes;
    std::vector<Scratch> scratch;
  };
  Views carve(Carver &carver, int64_t rows, int64_t wanted) const;

  const Program &program_;
  const int32_t threads_;
  Room room_;
  int64_t rows_ = 0, wanted_ = 0;
  Memory memory_;
  Views views_;
};

} // namespace dsedge
