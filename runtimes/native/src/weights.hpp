// The repacked form of weights: see Matrix in kernels.hpp. This file knows how the payload's rows get there.
#pragma once

#include "kernels.hpp"

#include <vector>

namespace dsedge {

// A weight as the payload stores it: `parts` matrices over the same columns, one after another or, when interleaved
// (all of one size), panel by panel in turn.
struct MatrixShape {
  int32_t bits, group;
  Kind kind;
  int64_t columns;
  std::vector<int64_t> parts; // rows of each
  bool interleaved;
};

// Some rows of a part. codes as in the payload (or the raw numbers); scales [rows, groups]; extra: zero points
// [rows, ceil(groups / 2)] or offsets [rows, groups], by kind.
struct SourceRows {
  int64_t first, count;
  const uint8_t *codes;
  const uint16_t *scales;
  const uint8_t *extra;
};

// Throws std::invalid_argument for a shape that no payload has. The result has no data yet.
Matrix lay_out(const MatrixShape &shape);
int64_t panels_of(int64_t rows);
// Bytes of a row as the payload stores it: codes, scales and extra.
struct RowBytes {
  int64_t codes, scales, extra;
};
RowBytes row_bytes(const Matrix &matrix);
// Copies rows of part `part` into their panels.
void pack(const Matrix &matrix, const MatrixShape &shape, int32_t part, const SourceRows &rows);
// Row `row` of a matrix of one part as floats, times `scale`.
void read_row(const Matrix &matrix, int64_t row, float scale, float *out);

} // namespace dsedge
