#include "op_test.hpp"

namespace dsedge::test {

void test_quantize(const char *kernels) {
  for (float crest : {0.0f, 100.0f}) { // all blocks in 16 bits, and none: numbers up to 1, within half a step
    OpProgram p;
    const int32_t x = p.input(70), codes = p.codes(70), other = p.codes(69);
    p.add(Quantize{.input = {x}, .output = {codes}, .crest = crest});
    p.check(
        kernels, codes, [&](int64_t row) { return std::vector<double>(p.row(x, row), p.row(x, row) + 70); },
        crest > 0 ? 0.51 / 127 : 0.51 / 127 / 128);
    p.refuses<Quantize>("codes of another width", [&](Quantize &o, Program &) { o.output = {other}; });
    p.refuses<Quantize>("floats as output", [&](Quantize &o, Program &) { o.output = {x}; });
    p.refuses<Quantize>("a negative crest", [&](Quantize &o, Program &) { o.crest = -1; });
  }
}

} // namespace dsedge::test
