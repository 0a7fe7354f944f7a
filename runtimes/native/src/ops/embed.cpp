#include "ops/product.hpp"

#include <stdexcept>

namespace dsedge {

namespace {

void verify_embed(const Checker &check, const Instruction &i) {
  const Embed &o = as<Embed>(i);
  const MatrixShape &m = check.program.matrix(o.matrix);
  check.require(m.rows.size() == 1 && m.columns == check.floats(o.output).width && !check.floats(o.output).wanted,
                "a matrix that does not fit");
}

void plan_embed(Context &ctx, const Instruction &i, const Forward &f) {
  const int64_t rows = ctx.program.matrix(as<Embed>(i).matrix).rows[0];
  for (int64_t n = 0; n < f.rows; ++n)
    if (f.tokens[n] < 0 || f.tokens[n] >= rows)
      throw std::invalid_argument("forward: a token outside the vocabulary");
}

void run_embed(Context &ctx, const Instruction &i, RowRange rows, int32_t) {
  const Embed &o = as<Embed>(i);
  for (int64_t row = rows.first; row < rows.first + rows.count; ++row)
    read_row(ctx, ctx.matrix(o.matrix), ctx.forward->tokens[row], o.scale, ctx.row(o.output, row));
}

} // namespace

extern const Op kEmbedOp;
const Op kEmbedOp = {
    .name = "embed", .verify = verify_embed, .cost = no_products, .run_rows = run_embed, .plan = plan_embed};

} // namespace dsedge
