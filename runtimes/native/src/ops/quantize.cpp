#include "ops/quantize.hpp"

namespace dsedge {

void verify_codes(const Checker &check, int32_t codes, int64_t width, float crest) {
  check.require(check.codes(codes).width == width, "codes of another width");
  check.require(crest >= 0, "a negative crest");
}

bool leads_by_codes(const Instruction &i, int32_t codes, const Instruction &next) {
  if (codes == kNone || !next.op().makes_input || !contains(next.reads, codes))
    return false;
  for (int32_t id : i.writes)
    if (id != codes && contains(next.reads, id))
      return false;
  return disjoint(i.reads, i.writes) && disjoint(next.writes, i.reads) && disjoint(next.writes, i.writes);
}

namespace {

void verify_quantize(const Checker &check, const Instruction &i) {
  const Quantize &o = as<Quantize>(i);
  verify_codes(check, o.output, check.floats(o.input).width, o.crest);
}

void make_codes_of(const Context &ctx, const Instruction &i, int64_t row, const QuantRows &codes) {
  const Quantize &o = as<Quantize>(i);
  ctx.kernels.quantize(ctx.row(o.input, row), ctx.width(o.input), o.crest, codes, 0);
}

void run_quantize(Context &ctx, const Instruction &i, RowRange rows, int32_t) {
  for (int64_t row = rows.first; row < rows.first + rows.count; ++row)
    make_codes_of(ctx, i, row, ctx.activations.codes(as<Quantize>(i).output).from(row));
}

bool quantize_leads(const Instruction &i, const Instruction &next) {
  return leads_by_codes(i, as<Quantize>(i).output, next);
}

void make_codes(const Context &ctx, const Instruction &i, float *, const QuantRows &codes) {
  make_codes_of(ctx, i, 0, codes);
}

} // namespace

extern const Op kQuantizeOp;
const Op kQuantizeOp = {.name = "quantize",
                        .verify = verify_quantize,
                        .cost = no_products,
                        .run_rows = run_quantize,
                        .leads = quantize_leads,
                        .make_codes = make_codes};

} // namespace dsedge
