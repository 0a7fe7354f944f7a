// The weight formats, and the packing of the payload's rows into panels.
#pragma once

#include "formats/matrix.hpp"

#include <string>
#include <vector>

namespace dsedge {

// A weight as the payload stores it: `rows` of each of several matrices over the same columns, one after another or, when
// interleaved (all of one size), a panel of each in alternation.
struct MatrixShape {
  int32_t format = 0, group = 0;
  int64_t columns = 0;
  std::vector<int64_t> rows;
  bool interleaved = false;
};

// What the engine knows of a format. Its file exports the functions, and the kernel sets compile its products.
struct Format {
  const char *name;
  int32_t bits;       // of a code or a number
  bool codes;         // codes with a scale for each group, or numbers
  int64_t group_extra; // bytes for 32 rows of a group beside codes and scales
  int64_t (*row_extra)(int64_t groups); // bytes of a row beside codes and scales in the payload
  void (*pack)(const Matrix &, const SourceRows &, int64_t row, uint8_t *panel, int lane);
};

// Throws std::invalid_argument for a name that is none.
int32_t find_format(const std::string &name);
const Format &format_of(int32_t format);

// Throws std::invalid_argument for a shape that no payload has. The result has no data yet.
Matrix lay_out(const MatrixShape &shape);
int64_t panels_of(int64_t rows);
RowBytes row_bytes(const Matrix &matrix);
// Copies rows of part `part` into their panels.
void pack(const Matrix &matrix, const MatrixShape &shape, int32_t part, const SourceRows &rows);

} // namespace dsedge
