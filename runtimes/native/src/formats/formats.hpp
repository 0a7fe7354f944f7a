// The weight formats, and the packing of the payload's rows into panels.
#pragma once

#include "formats/matrix.hpp"

#include <span>
#include <string>
#include <vector>

namespace dsedge {

// Rows and columns of a weight of a matrix in one format, by their first and how many.
struct RunShape {
  int32_t weight = 0;
  int64_t row = 0, rows = 0, column = 0, columns = 0;
  int32_t format = 0, group = 0;
};

// One or more weights of so many rows over the same columns. The runs of a weight follow one another: they are consecutive
// rows of all columns, or consecutive columns of all rows.
struct MatrixShape {
  int64_t columns = 0;
  std::vector<int64_t> rows;
  std::vector<RunShape> runs;
};

// A packed matrix. Each weight begins with a panel of its own. Where a panel belongs to several runs, each has a panel for
// it, and the matrix is their sum: where runs of rows meet within 32 rows, each has zeros in the rows of the other.
struct Matrix {
  int64_t panels = 0;
  std::vector<Run> runs; // neither their first panels nor their last ones descend

  // The runs that a panel belongs to.
  std::span<const Run> of_panel(int64_t panel) const;
};

// What the engine knows of a format. Its file exports the functions, and the kernel sets compile its products.
struct Format {
  const char *name;
  int32_t bits;       // of a code or a number
  bool codes;         // codes with a scale for each group, or numbers
  int64_t group_extra; // bytes for 32 rows of a group beside codes and scales
  int64_t (*row_extra)(int64_t groups); // bytes of a row beside codes and scales in the payload
  void (*pack)(const Run &, const SourceRows &, int64_t row, uint8_t *panel, int lane);
};

// Throws std::invalid_argument for a name that is none.
int32_t find_format(const std::string &name);
const Format &format_of(int32_t format);

int64_t panels_of(int64_t rows);
// Throws std::invalid_argument for a shape that no payload has. The runs have no data yet.
Matrix lay_out(const MatrixShape &shape);
RowBytes row_bytes(const Run &run);
// Copies rows of a run into its panels, which must have been zero.
void pack(const Run &run, const SourceRows &rows);

} // namespace dsedge
