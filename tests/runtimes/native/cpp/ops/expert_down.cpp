#include "experts.hpp"

namespace dsedge::test {

void test_expert_down(const char *kernels) {
  constexpr int64_t kInner = 45, kPadded = 128, kOut = 40;
  for (bool coded : {false, true}) {
    OpProgram p;
    const std::vector<int64_t> rows(kExpertCount, kOut), uneven = {kOut, kOut, kOut, kOut, kOut + 1};
    std::vector<float> inner; // each expert's part ends with zeros
    for (int64_t n = 0; n < kRows * kExpertsOfRow * kPadded; ++n)
      inner.push_back(n % kPadded < kInner ? std::sin(static_cast<float>(n)) : 0);
    const int32_t x = p.input(kExpertsOfRow * kPadded, inner), routing = p.input(kExpertCount, expert_weights());
    const int32_t in = coded ? p.codes_of(x) : x, down = p.matrix(kInner, rows, coded), other = p.matrix(kInner, uneven, coded);
    const int32_t out = p.floats(kOut), wide = p.floats(kOut + 1);
    p.add(ExpertDown{.input = {in}, .routing = {routing}, .output = {out}, .matrix = {down}, .top_k = kExpertsOfRow});
    p.check(
        kernels, out,
        [&](int64_t row) {
          std::vector<double> sums(kOut, 0);
          const float *part = p.row(x, row);
          for (int64_t e = 0; e < kExpertCount; ++e)
            if (p.row(routing, row)[e] != 0) {
              for (int64_t n = 0; n < kOut; ++n)
                sums[static_cast<size_t>(n)] += p.row(routing, row)[e] * p.dot(part, down, e * kOut + n);
              part += kPadded;
            }
          return sums;
        },
        coded ? 1e-3 : 1e-4);
    p.refuses<ExpertDown>("experts of several sizes", [&](ExpertDown &o, Program &) { o.matrix = {other}; });
    p.refuses<ExpertDown>("an input of another width", [&](ExpertDown &o, Program &) { o.top_k = kExpertsOfRow + 1; });
    p.refuses<ExpertDown>("an output of another width", [&](ExpertDown &o, Program &) { o.output = {wide}; });
    p.refuses<ExpertDown>("an output that is its input", [&](ExpertDown &o, Program &) { o.output = {routing}; });
  }
}

} // namespace dsedge::test
