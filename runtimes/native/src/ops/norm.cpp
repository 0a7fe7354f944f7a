#include "ops/quantize.hpp"

namespace dsedge {

namespace {

int64_t pieces(const Program &program, const Norm &o) {
  return program.buffer(o.input).width / static_cast<int64_t>(program.vectors[static_cast<size_t>(o.weight)].size());
}

void verify_norm(const Checker &check, const Instruction &i) {
  const Norm &o = as<Norm>(i);
  check.alike({o.input, o.output});
  const int64_t dim = static_cast<int64_t>(check.program.vectors[static_cast<size_t>(o.weight)].size());
  check.require(dim > 0 && check.floats(o.input).width % dim == 0 && o.eps > 0, "a weight or eps that does not fit");
  check.require(o.crest >= 0, "a negative crest");
  if (o.codes != kNone)
    verify_codes(check, o.codes, check.floats(o.input).width, o.crest);
}

// A row's result; `codes`: those of the row.
void normalize(const Context &ctx, const Norm &o, int64_t row, float *out, const QuantRows &codes) {
  const int64_t width = ctx.width(o.input), heads = pieces(ctx.program, o);
  ctx.kernels.norm(ctx.row(o.input, row), ctx.vector(o.weight), heads, width / heads, o.eps, out);
  if (o.codes != kNone)
    ctx.kernels.quantize(out, width, o.crest, codes, 0);
}

void run_norm(Context &ctx, const Instruction &i, RowRange rows, int32_t) {
  const Norm &o = as<Norm>(i);
  for (int64_t row = rows.first; row < rows.first + rows.count; ++row)
    normalize(ctx, o, row, ctx.row(o.output, row),
              o.codes == kNone ? QuantRows{} : ctx.activations.codes(o.codes).from(row));
}

bool norm_leads(const Instruction &i, const Instruction &next) { return leads_by_codes(i, as<Norm>(i).codes, next); }

void make_codes(const Context &ctx, const Instruction &i, float *out, const QuantRows &codes) {
  normalize(ctx, as<Norm>(i), 0, out, codes);
}

} // namespace

extern const Op kNormOp;
const Op kNormOp = {.name = "norm",
                    .verify = verify_norm,
                    .cost = no_products,
                    .run_rows = run_norm,
                    .leads = norm_leads,
                    .make_codes = make_codes};

} // namespace dsedge
