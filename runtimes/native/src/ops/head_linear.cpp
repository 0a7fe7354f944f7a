// A matrix for each head, all of them under one another in one. A task is a panel of 32 of its rows, which may belong to
// several heads: they are then computed with the input of each.
#include "ops/linear.hpp"

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
  check.require(m.rows.size() == 1, "several weights");
  check.require(o.heads > 0 && o.heads < 65536 && m.rows[0] % o.heads == 0, "rows that are not those of its heads");
  check.require(in.width == o.heads * m.columns, "an input of another width than its heads");
  check.require(!in.codes || (format_of(m.format).codes && m.columns % m.group == 0),
                "codes as input of a matrix of floats or of groups that are not whole");
  check.require(check.floats(o.output).width == m.rows[0] && o.output != o.input, "an output that does not fit");
}

void reserve_head_linear(const Program &program, const Instruction &i, Room &room) {
  reserve_product(shape_of(program, i), room);
}

Cost head_linear_cost(const Program &program, const Instruction &i) { return product_cost(shape_of(program, i)); }

int64_t head_linear_tasks(const Context &ctx, const Instruction &i) {
  return ctx.matrix(as<HeadLinear>(i).matrix).panels;
}

// Rows of a panel that belong to one head, and their results.
void run_head(const Context &ctx, const HeadLinear &o, int64_t panel, int64_t head, RowRange rows, const Scratch &scratch) {
  const Matrix &m = ctx.matrix(o.matrix);
  const int64_t each = ctx.width(o.output) / o.heads;
  const int64_t first = std::max(panel * kPanel, head * each), end = std::min((panel + 1) * kPanel, (head + 1) * each);
  product_of_some(ctx, o.input, head * m.columns, m, panel, rows, scratch, scratch.results);
  for (int64_t row = 0; row < rows.count; ++row)
    std::copy_n(scratch.results + row * kPanel + first - panel * kPanel, end - first,
                ctx.row(o.output, rows.first + row) + first);
}

void run_panels(Context &ctx, const Instruction &i, const Instruction *lead, int64_t begin, int64_t end, RowRange rows,
                int32_t thread) {
  const HeadLinear &o = as<HeadLinear>(i);
  const int64_t each = ctx.width(o.output) / o.heads;
  Scratch &scratch = ctx.activations.scratch(thread);
  read_input(ctx, i, o.input, lead, rows, begin == 0, scratch);
  for (int64_t panel = begin; panel < end; ++panel)
    for (int64_t head = panel * kPanel / each; head < o.heads && head * each < (panel + 1) * kPanel; ++head)
      run_head(ctx, o, panel, head, rows, scratch);
}

void run_tasks(Context &ctx, const Instruction &i, const Instruction *lead, int32_t begin, int32_t end, int32_t thread) {
  run_panels(ctx, i, lead, begin, end, ctx.rows_of(i), thread);
}

void run_rows(Context &ctx, const Instruction &i, RowRange rows, int32_t thread) {
  run_panels(ctx, i, nullptr, 0, head_linear_tasks(ctx, i), rows, thread);
}

} // namespace

extern const Op kHeadLinearOp;
const Op kHeadLinearOp = {.name = "head_linear",
                          .makes_input = true,
                          .verify = verify_head_linear,
                          .cost = head_linear_cost,
                          .run_rows = run_rows,
                          .reserve = reserve_head_linear,
                          .tasks = head_linear_tasks,
                          .run_tasks = run_tasks};

} // namespace dsedge
