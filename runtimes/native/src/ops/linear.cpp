// A task is a panel of 32 rows of the weights.
#include "ops/linear.hpp"

#include <algorithm>

namespace dsedge {

namespace {
constexpr int64_t kAhead = 128; // columns that an unpacked panel may have too many: those of the largest group
}

void verify_product(const Checker &check, int32_t input, const MatrixShape &matrix, const MaybeVectorList &biases) {
  const Buffer &in = check.program.buffer(input);
  check.require(in.width == matrix.columns, "an input of another width than its matrix");
  check.require(!in.codes || format_of(matrix.format).codes, "codes as input of a matrix of floats");
  check.biases(biases, matrix);
}

void reserve_product(const MatrixShape &matrix, Room &room) {
  room.panel_bytes = std::max(room.panel_bytes, (matrix.columns + kAhead) * kPanel * 4);
}

Cost product_cost(const MatrixShape &matrix) {
  Cost cost;
  for (int64_t rows : matrix.rows)
    cost.row += static_cast<double>(rows) * static_cast<double>(matrix.columns);
  return cost;
}

void read_input(Context &ctx, const Instruction &i, int32_t input, const Instruction *lead, RowRange rows, bool first,
                Scratch &scratch) {
  const int64_t here = ctx.number_of(i);
  if (!ctx.program.buffer(input).codes || (scratch.read_by == here && scratch.read_from == rows.first))
    return;
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
  if (rows.count > 1)
    find_flagged(scratch.input, rows.count, scratch.flagged);
  scratch.read_by = here;
  scratch.read_from = rows.first;
}

void product(const Context &ctx, int32_t input, const Matrix &m, int64_t panel, RowRange rows, const Scratch &scratch,
             float *results) {
  product_of_some(ctx, input, 0, m, panel, rows, scratch, results);
}

void product_of_some(const Context &ctx, int32_t input, int64_t first, const Matrix &m, int64_t panel, RowRange rows,
                     const Scratch &scratch, float *results) {
  const LinearKernels &kernels = ctx.kernels.linear[m.format];
  if (!ctx.program.buffer(input).codes)
    return kernels.panel_float(m, panel, ctx.row(input, rows.first) + first, ctx.width(input), rows.count,
                               reinterpret_cast<float *>(scratch.panel), results);
  const QuantRows &all = scratch.input;
  const int64_t block = first / kBlock;
  const QuantRows some{all.hi + first, all.lo + first, all.block + block, all.flag + block, all.blocks};
  kernels.panel(m, panel, some, {scratch.flagged.starts + block, scratch.flagged.rows}, rows.count, scratch.panel, results);
}

void add_bias(const Context &ctx, int32_t bias, int64_t first, int64_t count, int64_t rows, float *results) {
  if (bias == kNone)
    return;
  const float *values = ctx.vector(bias) + first;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t n = 0; n < count; ++n)
      results[row * kPanel + n] += values[n];
}

namespace {

const MatrixShape &shape_of(const Program &program, const Instruction &i) {
  return program.matrix(as<Linear>(i).matrix);
}

void verify_linear(const Checker &check, const Instruction &i) {
  const Linear &o = as<Linear>(i);
  const MatrixShape &m = shape_of(check.program, i);
  verify_product(check, o.input, m, o.biases);
  check.require(!m.interleaved, "interleaved weights");
  check.require(o.outputs.ids.size() == m.rows.size(), "another number of outputs than its matrix has weights");
  for (size_t n = 0; n < m.rows.size(); ++n)
    check.require(check.floats(o.outputs.ids[n]).width == m.rows[n], "an output that does not fit");
  check.require(!contains(i.writes, o.input), "an output that is its input");
  if (o.residual != kNone) {
    check.require(m.rows.size() == 1, "a residual for several outputs");
    check.alike({o.residual, o.outputs.ids[0]});
  }
}

void reserve_linear(const Program &program, const Instruction &i, Room &room) {
  reserve_product(shape_of(program, i), room);
}

Cost linear_cost(const Program &program, const Instruction &i) { return product_cost(shape_of(program, i)); }

int64_t linear_tasks(const Context &ctx, const Instruction &i) { return ctx.matrix(as<Linear>(i).matrix).panels; }

// Writes the results of a panel to the rows of its output, with bias and residual.
void put(const Context &ctx, const Linear &o, const MatrixShape &m, int64_t panel, RowRange rows, float *results) {
  size_t part = 0;
  while (panel >= panels_of(m.rows[part]))
    panel -= panels_of(m.rows[part++]);
  const int64_t first = panel * kPanel, count = std::min<int64_t>(kPanel, m.rows[part] - first);
  add_bias(ctx, o.biases.ids[part], first, count, rows.count, results);
  for (int64_t row = 0; row < rows.count; ++row) {
    float *out = ctx.row(o.outputs.ids[part], rows.first + row) + first;
    const float *result = results + row * kPanel;
    const float *residual = o.residual == kNone ? nullptr : ctx.row(o.residual, rows.first + row) + first;
    for (int64_t n = 0; n < count; ++n)
      out[n] = residual ? residual[n] + result[n] : result[n];
  }
}

void run_panels(Context &ctx, const Instruction &i, const Instruction *lead, int64_t begin, int64_t end, RowRange rows,
                int32_t thread) {
  const Linear &o = as<Linear>(i);
  Scratch &scratch = ctx.activations.scratch(thread);
  read_input(ctx, i, o.input, lead, rows, begin == 0, scratch);
  for (int64_t panel = begin; panel < end; ++panel) {
    product(ctx, o.input, ctx.matrix(o.matrix), panel, rows, scratch, scratch.results);
    put(ctx, o, shape_of(ctx.program, i), panel, rows, scratch.results);
  }
}

void run_tasks(Context &ctx, const Instruction &i, const Instruction *lead, int32_t begin, int32_t end, int32_t thread) {
  run_panels(ctx, i, lead, begin, end, ctx.rows_of(i), thread);
}

void run_rows(Context &ctx, const Instruction &i, RowRange rows, int32_t thread) {
  run_panels(ctx, i, nullptr, 0, linear_tasks(ctx, i), rows, thread);
}

} // namespace

extern const Op kLinearOp;
const Op kLinearOp = {.name = "linear",
                      .makes_input = true,
                      .verify = verify_linear,
                      .cost = linear_cost,
                      .run_rows = run_rows,
                      .reserve = reserve_linear,
                      .tasks = linear_tasks,
                      .run_tasks = run_tasks};

} // namespace dsedge
