#include "op_test.hpp"

namespace dsedge::test {

void test_gated_linear(const char *kernels) {
  for (bool coded : {false, true}) {
    OpProgram p;
    const int32_t x = p.input(70), gate = p.matrix(70, {45}, coded), up = p.matrix(70, {45}, coded), bias = p.vector(45);
    const int32_t short_up = p.matrix(70, {44}, coded), in = coded ? p.codes_of(x) : x, out = coded ? p.codes(45) : p.floats(45);
    const int32_t wide = coded ? p.codes(71) : p.floats(71);
    p.add(GatedLinear{.input = {in}, .output = {out}, .gate = {gate}, .up = {up}, .biases = {{bias, kNone}}, .activation = {0}, .crest = 0});
    p.check(
        kernels, out,
        [&](int64_t row) {
          std::vector<double> numbers;
          for (int64_t n = 0; n < 45; ++n) {
            const double a = p.dot(p.row(x, row), gate, n) + p.program.vectors[0][static_cast<size_t>(n)];
            numbers.push_back(a / (1 + std::exp(-a)) * p.dot(p.row(x, row), up, n));
          }
          return numbers;
        },
        coded ? 3e-2 : 1e-4);
    p.refuses<GatedLinear>("another number of rows", [&](GatedLinear &o, Program &) { o.up = {short_up}; });
    p.refuses<GatedLinear>("an output of another width", [&](GatedLinear &, Program &q) { q.buffers[static_cast<size_t>(out)].width = 46; });
    p.refuses<GatedLinear>("an input of another width", [&](GatedLinear &o, Program &) { o.input = {wide}; });
    p.refuses<GatedLinear>("an output that is its input", [&](GatedLinear &o, Program &q) {
      for (int32_t m : {gate, up})
        q.matrices[static_cast<size_t>(m)] = in_one_format(coded ? "int8-sym" : "float32", coded ? 32 : 0, 45, {45});
      o.input = {out};
    });
    p.refuses<GatedLinear>("one bias", [&](GatedLinear &o, Program &) { o.biases.ids.pop_back(); });
    p.refuses<GatedLinear>("a negative crest", [&](GatedLinear &o, Program &) { o.crest = -1; });
  }
}

} // namespace dsedge::test
