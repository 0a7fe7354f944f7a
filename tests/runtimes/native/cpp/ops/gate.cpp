#include "op_test.hpp"

#include <numbers>

namespace dsedge::test {

void test_gate(const char *kernels) {
  for (int32_t activation : {0, 1}) {
    OpProgram p;
    const int32_t gate = p.input(45), up = p.input(45), other = p.input(44), out = p.floats(45);
    p.add(Gate{.gate = {gate}, .up = {up}, .output = {out}, .activation = {activation}});
    p.check(kernels, out, [&](int64_t row) {
      std::vector<double> numbers;
      for (int64_t n = 0; n < 45; ++n) {
        const double a = p.row(gate, row)[n], inner = std::sqrt(2 / std::numbers::pi) * (a + 0.044715 * a * a * a);
        numbers.push_back((activation == 0 ? a / (1 + std::exp(-a)) : 0.5 * a * (1 + std::tanh(inner))) * p.row(up, row)[n]);
      }
      return numbers;
    });
    p.refuses<Gate>("operands of other widths", [&](Gate &o, Program &) { o.up = {other}; });
  }
}

} // namespace dsedge::test
