#include "op_test.hpp"

namespace dsedge::test {

void test_norm(const char *kernels) {
  OpProgram p;
  const int32_t x = p.input(96), out = p.floats(96), codes = p.codes(96), weight = p.vector(48), odd = p.vector(7);
  p.add(Norm{.input = {x}, .output = {out}, .codes = {codes}, .weight = {weight}, .eps = 1e-3f, .crest = 0});
  const auto expected = [&](int64_t row) {
    std::vector<double> numbers;
    for (int64_t first = 0; first < 96; first += 48) {
      double squares = 0;
      for (int64_t n = 0; n < 48; ++n)
        squares += std::pow(p.row(x, row)[first + n], 2);
      for (int64_t n = 0; n < 48; ++n)
        numbers.push_back(p.row(x, row)[first + n] / std::sqrt(squares / 48 + 1e-3f) * p.program.vectors[0][static_cast<size_t>(n)]);
    }
    return numbers;
  };
  p.check(kernels, out, expected);
  p.check(kernels, codes, expected, 2e-4);
  p.refuses<Norm>("a weight that is no piece of a row", [&](Norm &o, Program &) { o.weight = {odd}; });
  p.refuses<Norm>("an eps of 0", [&](Norm &o, Program &) { o.eps = 0; });
  p.refuses<Norm>("a negative crest", [&](Norm &o, Program &) { o.crest = -1; });
  p.refuses<Norm>("floats for its codes", [&](Norm &o, Program &) { o.codes = {x}; });
}

} // namespace dsedge::test
