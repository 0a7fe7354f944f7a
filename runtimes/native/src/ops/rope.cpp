#include "ops/op.hpp"

#include <algorithm>

namespace dsedge {

namespace {

void verify_rope(const Checker &check, const Instruction &i) {
  const Rope &o = as<Rope>(i);
  check.alike({o.input, o.output});
  const Buffer &x = check.floats(o.input);
  check.require(o.heads > 0 && x.width % o.heads == 0 && !x.wanted, "heads that do not fit"); // angles are of all rows
  check.rope(o.rope, x.width / o.heads);
}

void run_rope(Context &ctx, const Instruction &i, RowRange rows, int32_t) {
  const Rope &o = as<Rope>(i);
  const int64_t width = ctx.width(o.input);
  for (int64_t row = rows.first; row < rows.first + rows.count; ++row) {
    float *out = ctx.row(o.output, row);
    if (o.input != o.output)
      std::copy_n(ctx.row(o.input, row), width, out);
    ctx.rotate(o.rope, row, o.heads, width / o.heads, out);
  }
}

} // namespace

extern const Op kRopeOp;
const Op kRopeOp = {.name = "rope", .verify = verify_rope, .cost = no_products, .run_rows = run_rope};

} // namespace dsedge
