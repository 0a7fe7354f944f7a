// Which experts a row goes to. Scores are computed in double, so that ties are the reference's.
#include "ops/op.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace dsedge {

namespace {

void verify_router(const Checker &check, const Instruction &i) {
  const Router &o = as<Router>(i);
  check.alike({o.logits, o.output});
  check.require(o.logits != o.output, "an output that is its input");
  const int64_t experts = check.program.buffer(o.logits).width;
  check.biases(o.bias, {experts});
  check.require((o.sigmoid | 1) == 1 && (o.normalize | 1) == 1, "a switch that is neither 0 nor 1");
  check.require(o.groups > 0 && experts % o.groups == 0 && o.top_groups > 0 && o.top_groups <= o.groups,
                "groups that experts cannot be cut into");
  const int64_t each = experts / o.groups;
  check.require(o.group_best > 0 && o.group_best <= each, "more best of a group than it has");
  check.require(o.top_k > 0 && o.top_k <= each * o.top_groups, "more chosen experts than compete");
}

void plan_router(Context &ctx, const Instruction &i, const Forward &) {
  const size_t experts = static_cast<size_t>(ctx.width(as<Router>(i).logits));
  for (ExpertScratch &s : ctx.experts)
    for (std::vector<double> *values : {&s.scores, &s.ranks, &s.best})
      values->resize(std::max(values->size(), experts));
  for (ExpertScratch &s : ctx.experts)
    s.order.resize(std::max(s.order.size(), experts));
}

// Puts the indices of the `count` largest of values[0 … all - 1] first in `order`, the lower index first among equals.
void find_largest(const double *values, int64_t all, int64_t count, int32_t *order) {
  std::iota(order, order + all, 0);
  std::partial_sort(order, order + count, order + all,
                    [&](int32_t a, int32_t b) { return values[a] > values[b] || (values[a] == values[b] && a < b); });
}

// scores from logits; false if one is not a number.
bool score(const Router &o, const float *logits, int64_t experts, double *scores) {
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t e = 0; e < experts; ++e) {
    if (!std::isfinite(logits[e]))
      return false;
    top = std::max(top, static_cast<double>(logits[e]));
  }
  for (int64_t e = 0; e < experts; ++e) {
    const double x = logits[e];
    scores[e] = o.sigmoid ? 1 / (1 + std::exp(-x)) : std::exp(x - top);
    sum += scores[e];
  }
  if (!o.sigmoid)
    for (int64_t e = 0; e < experts; ++e)
      scores[e] /= sum;
  return true;
}

// The ranks of experts outside of the best groups become -infinity.
void keep_groups(const Router &o, int64_t experts, ExpertScratch &s) {
  const int64_t each = experts / o.groups;
  for (int64_t g = 0; g < o.groups; ++g) {
    const double *ranks = s.ranks.data() + g * each;
    find_largest(ranks, each, o.group_best, s.order.data());
    s.best[static_cast<size_t>(g)] = 0;
    for (int64_t n = 0; n < o.group_best; ++n)
      s.best[static_cast<size_t>(g)] += ranks[s.order[static_cast<size_t>(n)]];
  }
  find_largest(s.best.data(), o.groups, o.top_groups, s.order.data());
  for (int64_t n = o.top_groups; n < o.groups; ++n)
    std::fill_n(s.ranks.data() + s.order[static_cast<size_t>(n)] * each, each, -std::numeric_limits<double>::infinity());
}

void route(const Context &ctx, const Router &o, const float *logits, int64_t experts, ExpertScratch &s, float *out) {
  if (!score(o, logits, experts, s.scores.data())) { // a row of no numbers stays one
    std::fill_n(out, experts, std::nanf(""));
    return;
  }
  for (int64_t e = 0; e < experts; ++e)
    s.ranks[static_cast<size_t>(e)] =
        s.scores[static_cast<size_t>(e)] + (o.bias.ids[0] == kNone ? 0.0f : ctx.vector(o.bias.ids[0])[e]);
  if (o.top_groups < o.groups)
    keep_groups(o, experts, s);
  find_largest(s.ranks.data(), experts, o.top_k, s.order.data());
  double sum = 0;
  for (int64_t n = 0; n < o.top_k; ++n)
    sum += s.scores[static_cast<size_t>(s.order[static_cast<size_t>(n)])];
  std::fill_n(out, experts, 0.0f);
  for (int64_t n = 0; n < o.top_k; ++n) {
    const int32_t e = s.order[static_cast<size_t>(n)];
    const double weight = s.scores[static_cast<size_t>(e)] / (o.normalize ? sum : 1.0);
    out[e] = static_cast<float>(weight * static_cast<double>(o.scale));
  }
}

void run_router(Context &ctx, const Instruction &i, RowRange rows, int32_t thread) {
  const Router &o = as<Router>(i);
  ExpertScratch &s = ctx.experts[static_cast<size_t>(thread)];
  for (int64_t row = rows.first; row < rows.first + rows.count; ++row)
    route(ctx, o, ctx.row(o.logits, row), ctx.width(o.logits), s, ctx.row(o.output, row));
}

} // namespace

extern const Op kRouterOp;
const Op kRouterOp = {
    .name = "router", .verify = verify_router, .cost = no_products, .run_rows = run_router, .plan = plan_router};

} // namespace dsedge
