#include "attending.hpp"

namespace dsedge::test {

void test_attention(const char *kernels) {
  constexpr int64_t kDim = 12, kValues = 13;
  for (float softcap : {0.0f, 0.7f}) {
    OpProgram p; // four heads, two of which share keys and values
    const int32_t queries = p.input(4 * kDim), keys = p.input(2 * kDim), values = p.input(2 * kValues), out = p.floats(4 * kValues);
    const int32_t wanted = p.floats(4 * kDim, true), wanted_out = p.floats(4 * kValues, true);
    p.program.kv.layers = {{0, 2, kDim, kValues, KvFormat::kFloat32}};
    p.add(KvWrite{.keys = {keys}, .values = {values}, .layer = {0}, .rope = {0}});
    p.add(Attention{.queries = {queries}, .output = {out}, .layer = {0}, .heads = 4, .rope = {0}, .scale = 0.5f, .softcap = softcap});
    p.check(kernels, out, [&](int64_t row) {
      std::vector<double> all;
      for (int64_t head = 0; head < 4; ++head) {
        const std::vector<double> query = rotated(p.row(queries, row) + head * kDim, kDim, 4);
        const auto score = [&](int64_t at) {
          const double x = 0.5 * inner_product(query, rotated(p.row(keys, at) + head / 2 * kDim, kDim, 4));
          return softcap > 0 ? softcap * std::tanh(x / softcap) : x;
        };
        for (double number : attended(row, kValues, score, [&](int64_t at) { return p.row(values, at) + head / 2 * kValues; }))
          all.push_back(number);
      }
      return all;
    }, 5e-5);
    p.refuses<Attention>("heads that cannot be grouped", [&](Attention &o, Program &) { o.heads = 3; });
    p.refuses<Attention>("queries of another width", [&](Attention &o, Program &) { o.heads = 2; });
    p.refuses<Attention>("an output of another width", [&](Attention &o, Program &) { o.output = {keys}; });
    p.refuses<Attention>("a scale of 0", [&](Attention &o, Program &) { o.scale = 0; });
    p.refuses<Attention>("a negative soft-cap", [&](Attention &o, Program &) { o.softcap = -1; });
    p.refuses<Attention>("wanted rows", [&](Attention &o, Program &) {
      o.queries = {wanted};
      o.output = {wanted_out};
    });
  }
}

} // namespace dsedge::test
