#include "op_test.hpp"

namespace dsedge::test {

void test_softcap(const char *kernels) {
  OpProgram p;
  const int32_t x = p.input(45), other = p.input(44), out = p.floats(45);
  p.add(Softcap{.input = {x}, .output = {out}, .cap = 0.5f});
  p.check(kernels, out, [&](int64_t row) {
    std::vector<double> numbers;
    for (int64_t n = 0; n < 45; ++n)
      numbers.push_back(0.5 * std::tanh(p.row(x, row)[n] / 0.5));
    return numbers;
  });
  p.refuses<Softcap>("another width", [&](Softcap &o, Program &) { o.input = {other}; });
  for (float cap : {0.0f, -1.0f})
    p.refuses<Softcap>("a cap that is not positive", [&](Softcap &o, Program &) { o.cap = cap; });
}

} // namespace dsedge::test
