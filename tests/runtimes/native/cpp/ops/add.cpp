#include "op_test.hpp"

namespace dsedge::test {

void test_add(const char *kernels) {
  OpProgram p;
  const int32_t left = p.input(45), right = p.input(45), other = p.input(44), out = p.floats(45);
  p.add(Add{.left = {left}, .right = {right}, .output = {out}});
  p.check(kernels, out, [&](int64_t row) {
    std::vector<double> sums;
    for (int64_t n = 0; n < 45; ++n)
      sums.push_back(double{p.row(left, row)[n]} + p.row(right, row)[n]);
    return sums;
  });
  p.refuses<Add>("operands of other widths", [&](Add &o, Program &) { o.right = {other}; });
  p.refuses<Add>("codes", [&](Add &, Program &q) { q.buffers[static_cast<size_t>(out)].codes = true; });
}

} // namespace dsedge::test
