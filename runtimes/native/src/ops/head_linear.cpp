// A weight for each head. A task is a panel of 32 rows of one.
#include "ops/product.hpp"

#include <algorithm>

namespace dsedge {

namespace {

const MatrixShape &shape_of(const Program &program, const Instruction &i) {
  return program.matrix(as<HeadLinear>(i).matrix);
}

void verify_head_linear(const Checker &check, const Instruction &i) {
  const HeadLinear &o = as<HeadLinear>(i);
  const MatrixShape &m = shape_of(check.program, i);
  const Buffer &in = check.program.buffer(o.input);
  const int64_t heads = static_cast<int64_t>(m.rows.size());
  for (int64_t rows : m.rows)
    check.require(rows == m.rows[0], "heads of several sizes");
  check.require(in.width == heads * m.columns, "an input of another width than its heads");
  verify_product(check, in, m, m.columns); // behind a head's numbers are the next one's
  check.require(check.floats(o.output).width == heads * m.rows[0] && o.output != o.input, "an output that does not fit");
}

void reserve_head_linear(const Program &program, const Instruction &i, Room &room) {
  reserve_product(shape_of(program, i), room);
}

Cost head_linear_cost(const Program &program, const Instruction &i) { return product_cost(shape_of(program, i)); }

int64_t head_linear_tasks(const Context &ctx, const Instruction &i) {
  return ctx.matrix(as<HeadLinear>(i).matrix).panels;
}

void run_panels(Context &ctx, const Instruction &i, const Instruction *lead, int64_t begin, int64_t end, RowRange rows,
                int32_t thread) {
  const HeadLinear &o = as<HeadLinear>(i);
  const MatrixShape &m = shape_of(ctx.program, i);
  const int64_t each = m.rows[0], panels = panels_of(each);
  Scratch &scratch = ctx.activations.scratch(thread);
  const Inputs in = read_input(ctx, i, o.input, lead, rows, begin == 0, scratch);
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t head = panel / panels, first = panel % panels * kPanel, count = std::min<int64_t>(kPanel, each - first);
    product(ctx, in.after(head * m.columns), ctx.matrix(o.matrix), panel, scratch, scratch.results);
    for (int64_t row = 0; row < rows.count; ++row)
      std::copy_n(scratch.results + row * kPanel, count, ctx.row(o.output, rows.first + row) + head * each + first);
  }
}

} // namespace

extern const Op kHeadLinearOp;
const Op kHeadLinearOp = {.name = "head_linear",
                          .makes_input = true,
                          .verify = verify_head_linear,
                          .cost = head_linear_cost,
                          .run_rows = run_all_panels<run_panels, head_linear_tasks>,
                          .reserve = reserve_head_linear,
                          .tasks = head_linear_tasks,
                          .run_tasks = run_panel_tasks<run_panels>};

} // namespace dsedge
