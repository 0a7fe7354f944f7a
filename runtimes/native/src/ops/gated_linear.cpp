// A task is a panel of the gate and the same panel of the other matrix.
#include "ops/product.hpp"
#include "ops/quantize.hpp"

#include <algorithm>

namespace dsedge {

namespace {

const MatrixShape &gate_of(const Program &program, const Instruction &i) {
  return program.matrix(as<GatedLinear>(i).gate);
}
const MatrixShape &up_of(const Program &program, const Instruction &i) { return program.matrix(as<GatedLinear>(i).up); }

void verify_gated(const Checker &check, const Instruction &i) {
  const GatedLinear &o = as<GatedLinear>(i);
  const MatrixShape &gate = gate_of(check.program, i), &up = up_of(check.program, i);
  const Buffer &in = check.program.buffer(o.input);
  check.require(gate.rows.size() == 1 && gate.rows == up.rows, "matrices of several weights or of other rows");
  for (const MatrixShape *m : {&gate, &up}) {
    check.require(in.width == m->columns, "an input of another width than its matrix");
    verify_product(check, in, *m, padded_codes(m->columns));
  }
  check.biases(o.biases, {gate.rows[0], up.rows[0]});
  check.require(check.program.buffer(o.output).width == gate.rows[0] && o.crest >= 0, "an output that does not fit");
  check.require(o.output != o.input, "an output that is its input");
}

void reserve_gated(const Program &program, const Instruction &i, Room &room) { reserve_product(gate_of(program, i), room); }

Cost gated_cost(const Program &program, const Instruction &i) {
  return {.row = product_cost(gate_of(program, i)).row + product_cost(up_of(program, i)).row};
}

int64_t gated_tasks(const Context &ctx, const Instruction &i) { return ctx.matrix(as<GatedLinear>(i).gate).panels; }

// A panel's 32 numbers are one block of the output's codes. Rows behind the matrix's last are zeros, and so are their numbers.
void put(const Context &ctx, const Instruction &i, int64_t panel, RowRange rows, const Scratch &scratch) {
  const GatedLinear &o = as<GatedLinear>(i);
  const int64_t first = panel * kPanel;
  const int64_t count = std::min<int64_t>(kPanel, gate_of(ctx.program, i).rows[0] - first);
  add_bias(ctx, o.biases.ids[0], first, count, rows.count, scratch.results);
  add_bias(ctx, o.biases.ids[1], first, count, rows.count, scratch.others);
  ctx.kernels.gate(scratch.results, scratch.others, rows.count * kPanel, o.activation.kind, scratch.results);
  if (ctx.program.buffer(o.output).codes)
    return ctx.kernels.quantize_block(scratch.results, rows.count, o.crest,
                                      ctx.activations.codes(o.output).from(rows.first), panel);
  for (int64_t row = 0; row < rows.count; ++row)
    std::copy_n(scratch.results + row * kPanel, count, ctx.row(o.output, rows.first + row) + first);
}

void run_panels(Context &ctx, const Instruction &i, const Instruction *lead, int64_t begin, int64_t end, RowRange rows,
                int32_t thread) {
  const GatedLinear &o = as<GatedLinear>(i);
  Scratch &scratch = ctx.activations.scratch(thread);
  const Inputs in = read_input(ctx, i, o.input, lead, rows, begin == 0, scratch);
  for (int64_t panel = begin; panel < end; ++panel) {
    product(ctx, in, ctx.matrix(o.gate), panel, scratch, scratch.results);
    product(ctx, in, ctx.matrix(o.up), panel, scratch, scratch.others);
    put(ctx, i, panel, rows, scratch);
  }
}

} // namespace

extern const Op kGatedLinearOp;
const Op kGatedLinearOp = {.name = "gated_linear",
                           .makes_input = true,
                           .verify = verify_gated,
                           .cost = gated_cost,
                           .run_rows = run_all_panels<run_panels, gated_tasks>,
                           .reserve = reserve_gated,
                           .tasks = gated_tasks,
                           .run_tasks = run_panel_tasks<run_panels>};

} // namespace dsedge
