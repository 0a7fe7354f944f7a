#include "op_test.hpp"

namespace dsedge::test {

void test_embed(const char *kernels) {
  OpProgram p;
  const int32_t out = p.floats(45), other = p.floats(44), wanted = p.floats(45, true), m = p.matrix(45, {kRows}, true);
  const int32_t two = p.matrix(45, {100, 50}, true);
  p.add(Embed{.output = {out}, .matrix = {m}, .scale = 3});
  p.check(kernels, out, [&](int64_t row) {
    std::vector<double> numbers;
    for (int64_t n = 0; n < 45; ++n)
      numbers.push_back(3.0 * p.weight(m, row)[n]);
    return numbers;
  });
  p.refuses<Embed>("several weights", [&](Embed &o, Program &) { o.matrix = {two}; });
  p.refuses<Embed>("another width", [&](Embed &o, Program &) { o.output = {other}; });
  p.refuses<Embed>("wanted rows", [&](Embed &o, Program &) { o.output = {wanted}; });
}

} // namespace dsedge::test
