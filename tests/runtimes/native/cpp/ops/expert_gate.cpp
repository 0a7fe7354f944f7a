#include "experts.hpp"

namespace dsedge::test {

void test_expert_gate(const char *kernels) {
  constexpr int64_t kInner = 45, kPadded = 128;
  for (bool coded : {false, true}) {
    OpProgram p;
    const std::vector<int64_t> rows(kExpertCount, kInner), shorter(kExpertCount, kInner - 1);
    const int32_t x = p.input(70), routing = p.input(kExpertCount, expert_weights()), in = coded ? p.codes_of(x) : x;
    const int32_t gate = p.matrix(70, rows, coded), up = p.matrix(70, rows, coded), other = p.matrix(70, shorter, coded);
    const int32_t few = p.matrix(70, {kInner}, coded), out = p.floats(kExpertsOfRow * kPadded);
    p.add(ExpertGate{.input = {in}, .routing = {routing}, .output = {out}, .gate = {gate}, .up = {up}, .top_k = kExpertsOfRow,
                     .activation = {0}, .crest = 0});
    p.check(
        kernels, out,
        [&](int64_t row) {
          std::vector<double> numbers;
          for (int64_t e = 0; e < kExpertCount; ++e)
            if (p.row(routing, row)[e] != 0)
              for (int64_t n = 0; n < kPadded; ++n) {
                const double a = n < kInner ? p.dot(p.row(x, row), gate, e * kInner + n) : 0;
                numbers.push_back(n < kInner ? a / (1 + std::exp(-a)) * p.dot(p.row(x, row), up, e * kInner + n) : 0);
              }
          return numbers;
        },
        coded ? 2e-2 : 1e-4);
    p.refuses<ExpertGate>("another number of rows", [&](ExpertGate &o, Program &) { o.up = {other}; });
    p.refuses<ExpertGate>("another number of experts", [&](ExpertGate &o, Program &) { o.gate = o.up = {few}; });
    p.refuses<ExpertGate>("more experts than there are", [&](ExpertGate &o, Program &) { o.top_k = kExpertCount + 1; });
    p.refuses<ExpertGate>("an output of another width", [&](ExpertGate &o, Program &) { o.top_k = kExpertsOfRow - 1; });
    p.refuses<ExpertGate>("an output that is its input", [&](ExpertGate &o, Program &) { o.output = {routing}; });
    p.refuses<ExpertGate>("a negative crest", [&](ExpertGate &o, Program &) { o.crest = -1; });
  }
}

} // namespace dsedge::test
