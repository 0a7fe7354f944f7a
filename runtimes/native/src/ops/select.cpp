#include "ops/op.hpp"

#include <algorithm>

namespace dsedge {

namespace {

void verify_select(const Checker &check, const Instruction &i) {
  const Select &o = as<Select>(i);
  check.alike({o.input, o.output});
  check.require(!check.floats(o.input).wanted && check.floats(o.output).wanted,
                "other buffers than one of all rows and one of the wanted ones");
}

void run_select(Context &ctx, const Instruction &i, RowRange rows, int32_t) {
  const Select &o = as<Select>(i);
  for (int64_t row = rows.first; row < rows.first + rows.count; ++row)
    std::copy_n(ctx.row(o.input, ctx.forward->wanted[static_cast<size_t>(row)]), ctx.width(o.input),
                ctx.row(o.output, row));
}

} // namespace

// It reads all rows and writes the wanted ones.
extern const Op kSelectOp;
const Op kSelectOp = {.name = "select",
                      .one_set_of_rows = false,
                      .verify = verify_select,
                      .cost = no_products,
                      .run_rows = run_select};

} // namespace dsedge
