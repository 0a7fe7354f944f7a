#include "op_test.hpp"

namespace dsedge::test {

void test_select(const char *kernels) {
  OpProgram p;
  const int32_t x = p.input(45), other = p.input(44), wanted = p.floats(45, true);
  p.add(Select{.input = {x}, .output = {wanted}});
  p.check(kernels, wanted, [&](int64_t row) {
    std::vector<double> twice; // wanted rows are shown by their sum with themselves
    for (int64_t n = 0; n < 45; ++n)
      twice.push_back(2.0 * p.row(x, row)[n]);
    return twice;
  });
  p.refuses<Select>("another width", [&](Select &o, Program &) { o.input = {other}; });
  p.refuses<Select>("wanted rows as input", [&](Select &o, Program &) { o.input = {wanted}; });
  p.refuses<Select>("all rows as output", [&](Select &o, Program &) { o.output = {x}; });
}

} // namespace dsedge::test
