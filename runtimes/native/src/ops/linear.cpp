// A task is a panel of 32 rows of the weights.
#include "ops/product.hpp"

#include <algorithm>

namespace dsedge {

namespace {

const MatrixShape &shape_of(const Program &program, const Instruction &i) {
  return program.matrix(as<Linear>(i).matrix);
}

void verify_linear(const Checker &check, const Instruction &i) {
  const Linear &o = as<Linear>(i);
  const MatrixShape &m = shape_of(check.program, i);
  const Buffer &in = check.program.buffer(o.input);
  check.require(in.width == m.columns, "an input of another width than its matrix");
  verify_product(check, in, m, padded_codes(m.columns));
  check.biases(o.biases, m.rows);
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
  size_t weight = 0;
  while (panel >= panels_of(m.rows[weight]))
    panel -= panels_of(m.rows[weight++]);
  const int64_t first = panel * kPanel, count = std::min<int64_t>(kPanel, m.rows[weight] - first);
  add_bias(ctx, o.biases.ids[weight], first, count, rows.count, results);
  for (int64_t row = 0; row < rows.count; ++row) {
    float *out = ctx.row(o.outputs.ids[weight], rows.first + row) + first;
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
  const Inputs in = read_input(ctx, i, o.input, lead, rows, begin == 0, scratch);
  for (int64_t panel = begin; panel < end; ++panel) {
    product(ctx, in, ctx.matrix(o.matrix), panel, scratch, scratch.results);
    put(ctx, o, shape_of(ctx.program, i), panel, rows, scratch.results);
  }
}

} // namespace

extern const Op kLinearOp;
const Op kLinearOp = {.name = "linear",
                      .makes_input = true,
                      .verify = verify_linear,
                      .cost = linear_cost,
                      .run_rows = run_all_panels<run_panels, linear_tasks>,
                      .reserve = reserve_linear,
                      .tasks = linear_tasks,
                      .run_tasks = run_panel_tasks<run_panels>};

} // namespace dsedge
