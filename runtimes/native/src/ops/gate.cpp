#include "ops/op.hpp"

namespace dsedge {

namespace {

void verify_gate(const Checker &check, const Instruction &i) {
  const Gate &o = as<Gate>(i);
  check.alike({o.gate, o.up, o.output});
}

void run_gate(Context &ctx, const Instruction &i, RowRange rows, int32_t) {
  const Gate &o = as<Gate>(i);
  for (int64_t row = rows.first; row < rows.first + rows.count; ++row)
    ctx.kernels.gate(ctx.row(o.gate, row), ctx.row(o.up, row), ctx.width(o.gate), o.activation.kind,
                     ctx.row(o.output, row));
}

} // namespace

extern const Op kGateOp;
const Op kGateOp = {.name = "gate", .verify = verify_gate, .cost = no_products, .run_rows = run_gate};

} // namespace dsedge
