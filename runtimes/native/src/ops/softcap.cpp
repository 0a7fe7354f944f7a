#include "ops/op.hpp"

namespace dsedge {

namespace {

void verify_softcap(const Checker &check, const Instruction &i) {
  const Softcap &o = as<Softcap>(i);
  check.alike({o.input, o.output});
  check.require(o.cap > 0, "a cap that is not positive");
}

void run_softcap(Context &ctx, const Instruction &i, RowRange rows, int32_t) {
  const Softcap &o = as<Softcap>(i);
  for (int64_t row = rows.first; row < rows.first + rows.count; ++row)
    ctx.kernels.softcap(ctx.row(o.input, row), ctx.width(o.input), o.cap, ctx.row(o.output, row));
}

} // namespace

extern const Op kSoftcapOp;
const Op kSoftcapOp = {.name = "softcap", .verify = verify_softcap, .cost = no_products, .run_rows = run_softcap};

} // namespace dsedge
