#include "attending.hpp"

namespace dsedge::test {

// What was written is seen by attention: with a scale that makes all scores equal, the mean of values so far.
void test_kv_write(const char *kernels) {
  OpProgram p;
  const int32_t keys = p.input(2 * 12), values = p.input(2 * 13), queries = p.input(2 * 12), out = p.floats(2 * 13);
  p.program.kv.layers = {{0, 2, 12, 13, KvFormat::kFloat32}};
  p.add(KvWrite{.keys = {keys}, .values = {values}, .layer = {0}, .rope = {0}});
  p.add(Attention{.queries = {queries}, .output = {out}, .layer = {0}, .heads = 2, .rope = {kNone}, .scale = 1e-30f});
  p.check(kernels, out, [&](int64_t row) {
    std::vector<double> both;
    for (int64_t head = 0; head < 2; ++head)
      for (double number : attended(row, 13, [](int64_t) { return 0.0; }, [&](int64_t at) { return p.row(values, at) + head * 13; }))
        both.push_back(number);
    return both;
  }, 5e-5);
  p.refuses<KvWrite>("keys of another width", [&](KvWrite &o, Program &) { o.keys = {values}; });
  p.refuses<KvWrite>("values of another width", [&](KvWrite &o, Program &) { o.values = {keys}; });
  p.refuses<KvWrite>("more pairs than its heads", [&](KvWrite &, Program &q) { q.ropes[0] = 7; });
}

} // namespace dsedge::test
