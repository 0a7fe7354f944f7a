#include "op_test.hpp"

namespace dsedge::test {

void test_head_linear(const char *kernels) {
  for (bool coded : {false, true}) {
    OpProgram p;
    const int32_t x = p.input(3 * 64), m = p.matrix(64, {45, 45, 45}, coded), uneven = p.matrix(64, {45, 44, 46}, coded);
    const int32_t in = coded ? p.codes_of(x) : x, out = p.floats(3 * 45), other = p.floats(3 * 44);
    const int32_t narrow = coded ? p.codes(128) : p.floats(128);
    p.add(HeadLinear{.input = {in}, .output = {out}, .matrix = {m}});
    p.check(
        kernels, out,
        [&](int64_t row) {
          std::vector<double> sums;
          for (int64_t n = 0; n < 3 * 45; ++n)
            sums.push_back(p.dot(p.row(x, row) + n / 45 * 64, m, n));
          return sums;
        },
        coded ? 1e-3 : 1e-5);
    p.refuses<HeadLinear>("heads of several sizes", [&](HeadLinear &o, Program &) { o.matrix = {uneven}; });
    p.refuses<HeadLinear>("an output of another width", [&](HeadLinear &o, Program &) { o.output = {other}; });
    p.refuses<HeadLinear>("an input of another width", [&](HeadLinear &o, Program &) { o.input = {narrow}; });
    if (coded)
      p.refuses<HeadLinear>("groups that reach into the next head", [&](HeadLinear &, Program &q) {
        q.matrices[static_cast<size_t>(m)] = in_one_format("int4-sym", 128, 64, {45, 45, 45});
      });
  }
}

} // namespace dsedge::test
