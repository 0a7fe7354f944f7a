#include "op_test.hpp"

#include <algorithm>
#include <numeric>

namespace dsedge::test {

namespace {

constexpr int64_t kExperts = 12, kChosen = 3;

// The indices of the `count` largest numbers.
std::vector<size_t> largest(const std::vector<double> &values, int64_t count) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
  order.resize(static_cast<size_t>(count));
  return order;
}

// Of four groups of three experts those two whose two best add up to most compete.
std::vector<double> route(const float *logits, const float *bias) {
  std::vector<double> scores, ranks, sums;
  for (int64_t e = 0; e < kExperts; ++e) {
    scores.push_back(1 / (1 + std::exp(-double{logits[e]})));
    ranks.push_back(scores.back() + bias[e]);
  }
  for (size_t group = 0; group < 4; ++group) {
    std::vector<double> best(ranks.begin() + static_cast<std::ptrdiff_t>(group) * 3, ranks.begin() + static_cast<std::ptrdiff_t>(group) * 3 + 3);
    std::sort(best.rbegin(), best.rend());
    sums.push_back(best[0] + best[1]);
  }
  const std::vector<size_t> groups = largest(sums, 2);
  for (size_t e = 0; e < ranks.size(); ++e)
    if (std::find(groups.begin(), groups.end(), e / 3) == groups.end())
      ranks[e] = -INFINITY;
  std::vector<double> weights(kExperts, 0);
  double sum = 0;
  for (size_t e : largest(ranks, kChosen))
    sum += scores[e];
  for (size_t e : largest(ranks, kChosen))
    weights[e] = 2.5 * scores[e] / sum;
  return weights;
}

} // namespace

void test_router(const char *kernels) {
  OpProgram p;
  const int32_t logits = p.input(kExperts), out = p.floats(kExperts), bias = p.vector(kExperts), odd = p.vector(kExperts + 1);
  p.add(Router{.logits = {logits}, .output = {out}, .bias = {{bias}}, .top_k = kChosen, .sigmoid = 1, .normalize = 1, .scale = 2.5f,
               .groups = 4, .top_groups = 2, .group_best = 2});
  p.check(kernels, out, [&](int64_t row) { return route(p.row(logits, row), p.program.vectors[0].data()); });
  p.refuses<Router>("more experts than compete", [&](Router &o, Program &) { o.top_k = 7; });
  p.refuses<Router>("groups of several sizes", [&](Router &o, Program &) { o.groups = 5; });
  p.refuses<Router>("more best groups than there are", [&](Router &o, Program &) { o.top_groups = 5; });
  p.refuses<Router>("more best experts than a group has", [&](Router &o, Program &) { o.group_best = 4; });
  p.refuses<Router>("a bias of another width", [&](Router &o, Program &) { o.bias.ids[0] = odd; });
  p.refuses<Router>("an output that is its input", [&](Router &o, Program &) { o.output = {logits}; });
}

} // namespace dsedge::test
