#include "op_test.hpp"

namespace dsedge::test {

void test_linear(const char *kernels) {
  for (bool coded : {false, true}) {
    OpProgram p;
    const int32_t x = p.input(70), first = p.floats(45), second = p.floats(33), other = p.floats(44);
    const int32_t two = p.matrix(70, {45, 33}, coded), bias = p.vector(33), odd = p.vector(32);
    const int32_t in = coded ? p.codes_of(x) : x, wide = coded ? p.codes(71) : p.floats(71);
    p.add(Linear{.input = {in}, .outputs = {{first, second}}, .matrix = {two}, .biases = {{kNone, bias}}});
    const double bound = coded ? 1e-3 : 1e-5;
    p.check(
        kernels, first,
        [&](int64_t row) {
          std::vector<double> sums;
          for (int64_t n = 0; n < 45; ++n)
            sums.push_back(p.dot(p.row(x, row), two, n));
          return sums;
        },
        bound);
    p.check(
        kernels, second,
        [&](int64_t row) {
          std::vector<double> sums;
          for (int64_t n = 0; n < 33; ++n)
            sums.push_back(p.dot(p.row(x, row), two, 45 + n) + p.program.vectors[0][static_cast<size_t>(n)]);
          return sums;
        },
        bound);
    p.refuses<Linear>("an output of another width", [&](Linear &o, Program &) { o.outputs.ids[0] = other; });
    p.refuses<Linear>("too few outputs", [&](Linear &o, Program &) { o.outputs.ids.pop_back(); });
    p.refuses<Linear>("a bias of another width", [&](Linear &o, Program &) { o.biases.ids[1] = odd; });
    p.refuses<Linear>("a residual for two outputs", [&](Linear &o, Program &) { o.residual = {first}; });
    p.refuses<Linear>("an input of another width", [&](Linear &o, Program &) { o.input = {wide}; });
    if (coded)
      p.refuses<Linear>("codes for floats", [&](Linear &, Program &q) { q.matrices[static_cast<size_t>(two)] = in_one_format("float32", 0, 70, {45, 33}); });
  }
  OpProgram p; // over its own residual
  const int32_t x = p.input(70), sum = p.input(45), m = p.matrix(70, {45}, false), before = p.floats(45);
  p.add(Add{.left = {sum}, .right = {sum}, .output = {before}});
  p.add(Linear{.input = {x}, .residual = {before}, .outputs = {{before}}, .matrix = {m}, .biases = {{kNone}}});
  p.check(kernels, before, [&](int64_t row) {
    std::vector<double> sums;
    for (int64_t n = 0; n < 45; ++n)
      sums.push_back(p.dot(p.row(x, row), m, n) + 2.0 * p.row(sum, row)[n]);
    return sums;
  });
  p.refuses<Linear>("a residual of another width", [&](Linear &o, Program &) { o.residual = {x}; });
}

} // namespace dsedge::test
