#include "ops/product.hpp"

#include <algorithm>

namespace dsedge {

Inputs Inputs::after(int64_t columns) const {
  Inputs in = *this;
  if (floats) {
    in.floats += columns;
    return in;
  }
  const int64_t blocks = columns / kBlock;
  in.codes = codes.after(blocks);
  in.flagged += blocks;
  return in;
}

void verify_product(const Checker &check, const Buffer &input, const MatrixShape &matrix, int64_t padded) {
  if (!input.codes)
    return;
  for (const RunShape &run : matrix.runs) {
    check.require(format_of(run.format).codes, "codes as input of a matrix of floats");
    const int64_t end = run.column + run.columns;
    const int64_t read = run.column + (run.columns + run.group - 1) / run.group * run.group;
    check.require(run.column % kBlock == 0 && read <= (end == matrix.columns ? padded : end),
                  "codes as input of columns that are not whole blocks or groups");
  }
}

void reserve_product(const MatrixShape &matrix, Room &room) {
  room.panel_bytes = std::max(room.panel_bytes, (matrix.columns + kMostGroup) * kPanel * 4);
}

Cost product_cost(const MatrixShape &matrix) {
  Cost cost;
  for (int64_t rows : matrix.rows)
    cost.row += static_cast<double>(rows) * static_cast<double>(matrix.columns);
  return cost;
}

Inputs read_input(Context &ctx, const Instruction &i, int32_t input, const Instruction *lead, RowRange rows, bool first,
                  Scratch &scratch) {
  Inputs in;
  in.count = rows.count;
  if (!ctx.program.buffer(input).codes) {
    in.floats = ctx.row(input, rows.first);
    in.stride = ctx.width(input);
    return in;
  }
  const int64_t here = ctx.number_of(i);
  if (scratch.read_by != here || scratch.read_from != rows.first) {
    scratch.input = ctx.activations.codes(input).from(rows.first);
    if (lead && !first) {
      scratch.own_codes.blocks = scratch.input.blocks;
      scratch.input = scratch.own_codes;
    }
    if (lead) {
      float *out = scratch.own_row;
      for (int32_t id : lead->writes)
        if (first && !ctx.program.buffer(id).codes)
          out = ctx.row(id, 0);
      lead->op().make_codes(ctx, *lead, out, scratch.input);
    }
    find_flagged(scratch.input, rows.count, scratch.flagged);
    scratch.read_by = here;
    scratch.read_from = rows.first;
  }
  in.codes = scratch.input;
  in.flagged = scratch.flagged;
  return in;
}

// out [count][32] = the inputs, from the run's first column on, times the rows of a panel of the run.
static void multiply(const Context &ctx, const Inputs &in, const Run &run, int64_t panel, const Scratch &scratch, float *out) {
  const LinearKernels &kernels = ctx.kernels.linear[run.format];
  if (in.floats)
    kernels.panel_float(run, panel - run.first_panel, in.floats, in.stride, in.count,
                        reinterpret_cast<float *>(scratch.panel), out);
  else
    kernels.panel(run, panel - run.first_panel, in.codes, in.flagged, in.count, out);
}

void product(const Context &ctx, const Inputs &in, const Matrix &matrix, int64_t panel, const Scratch &scratch, float *results) {
  float *out = results;
  for (const Run &run : matrix.of_panel(panel)) {
    if (run.column == 0) // without a copy of the inputs: a panel for one token takes less than a microsecond
      multiply(ctx, in, run, panel, scratch, out);
    else
      multiply(ctx, in.after(run.column), run, panel, scratch, out);
    for (int64_t n = 0; out != results && n < in.count * kPanel; ++n)
      results[n] += out[n];
    out = scratch.term;
  }
}

void read_row(const Context &ctx, const Matrix &matrix, int64_t row, float scale, float *out) {
  for (const Run &run : matrix.of_panel(row / kPanel))
    if (run.row <= row && row < run.row + run.rows)
      ctx.kernels.linear[run.format].read_row(run, row - run.first_panel * kPanel, scale, out + run.column);
}

void add_bias(const Context &ctx, int32_t bias, int64_t first, int64_t count, int64_t rows, float *results) {
  if (bias == kNone)
    return;
  const float *values = ctx.vector(bias) + first;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t n = 0; n < count; ++n)
      results[row * kPanel + n] += values[n];
}

} // namespace dsedge
