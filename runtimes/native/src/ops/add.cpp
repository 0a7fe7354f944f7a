#include "ops/op.hpp"

namespace dsedge {

namespace {

void verify_add(const Checker &check, const Instruction &i) {
  const Add &o = as<Add>(i);
  check.alike({o.left, o.right, o.output});
}

void run_add(Context &ctx, const Instruction &i, RowRange rows, int32_t) {
  const Add &o = as<Add>(i);
  for (int64_t row = rows.first; row < rows.first + rows.count; ++row) {
    const float *left = ctx.row(o.left, row), *right = ctx.row(o.right, row);
    float *out = ctx.row(o.output, row);
    for (int64_t n = 0; n < ctx.width(o.output); ++n)
      out[n] = left[n] + right[n];
  }
}

} // namespace

extern const Op kAddOp;
const Op kAddOp = {.name = "add", .verify = verify_add, .cost = no_products, .run_rows = run_add};

} // namespace dsedge
