// Products with panels of a matrix, for the ops that have some: the one place that reads matrices, whatever their formats.
#pragma once

#include "ops/op.hpp"

namespace dsedge {

// Some rows that a matrix is multiplied with: codes and their flagged blocks, or floats [count][stride].
struct Inputs {
  QuantRows codes;
  const uint32_t *flagged = nullptr; // the tiles of the codes, as find_flagged says
  const float *floats = nullptr; // nullptr: codes
  int64_t stride = 0, count = 0;

  // The same rows without their first columns; of codes these are whole blocks.
  Inputs after(int64_t columns) const;
};

// Throws unless rows of a buffer, of which a product takes matrix.columns numbers, may be multiplied with the matrix.
// Codes may where all formats are of codes, runs begin with a block, and their groups end with the run. The groups of the
// last columns may go on to the end of `padded` codes, which are zeros behind the matrix's columns.
void verify_product(const Checker &check, const Buffer &input, const MatrixShape &matrix, int64_t padded);
void reserve_product(const MatrixShape &matrix, Room &room);
Cost product_cost(const MatrixShape &matrix);

// The input of products with `rows` of a buffer. For codes each thread finds once an instruction which blocks are flagged or,
// with a lead, makes the row itself; the thread with the first task (`first`) makes it for later instructions too.
Inputs read_input(Context &ctx, const Instruction &i, int32_t input, const Instruction *lead, RowRange rows, bool first,
                  Scratch &scratch);
// results [count][32] = the inputs times the rows of a panel. The products of its runs are added one after another, so the
// bits of a row depend on the row and the matrix alone.
void product(const Context &ctx, const Inputs &in, const Matrix &matrix, int64_t panel, const Scratch &scratch, float *results);
// A row of a matrix of one weight as floats, times `scale`.
void read_row(const Context &ctx, const Matrix &matrix, int64_t row, float scale, float *out);
// Adds numbers first … first + count - 1 of a bias, or nothing.
void add_bias(const Context &ctx, int32_t bias, int64_t first, int64_t count, int64_t rows, float *results);

// The run_tasks and run_rows of an op whose tasks are panels: Run(ctx, i, lead, begin, end, rows, thread) does panels
// begin … end - 1 for some rows.
template <auto Run>
void run_panel_tasks(Context &ctx, const Instruction &i, const Instruction *lead, int32_t begin, int32_t end, int32_t thread) {
  Run(ctx, i, lead, begin, end, ctx.rows_of(i), thread);
}
template <auto Run, auto Tasks> void run_all_panels(Context &ctx, const Instruction &i, RowRange rows, int32_t thread) {
  Run(ctx, i, nullptr, 0, Tasks(ctx, i), rows, thread);
}

} // namespace dsedge
