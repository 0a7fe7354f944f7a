#include "op_test.hpp"

namespace dsedge::test {

void test_rope(const char *kernels) {
  OpProgram p;
  const int32_t x = p.input(2 * 13), other = p.input(2 * 12), out = p.floats(2 * 13), wanted = p.floats(2 * 13, true);
  p.add(Rope{.input = {x}, .output = {out}, .heads = 2, .rope = {0}});
  p.check(kernels, out, [&](int64_t row) { // four pairs of each head by (0.8, 0.6), the rest stays
    std::vector<double> numbers(p.row(x, row), p.row(x, row) + 26);
    for (size_t head = 0; head < 2; ++head)
      for (size_t pair = head * 13; pair < head * 13 + 4; ++pair) {
        const double a = numbers[pair], b = numbers[pair + 4];
        numbers[pair] = a * 0.8f - b * 0.6f;
        numbers[pair + 4] = b * 0.8f + a * 0.6f;
      }
    return numbers;
  });
  p.refuses<Rope>("another width", [&](Rope &o, Program &) { o.input = {other}; });
  p.refuses<Rope>("heads that are no part of the width", [&](Rope &o, Program &) { o.heads = 3; });
  p.refuses<Rope>("no heads", [&](Rope &o, Program &) { o.heads = 0; });
  p.refuses<Rope>("more pairs than its heads", [&](Rope &, Program &q) { q.ropes[0] = 7; });
  p.refuses<Rope>("wanted rows", [&](Rope &o, Program &) {
    o.input = {wanted};
    o.output = {wanted};
  });
}

} // namespace dsedge::test
