#include "attending.hpp"

namespace dsedge::test {

void test_latent_attention(const char *kernels) {
  constexpr int64_t kDim = 8, kLatent = 20;
  OpProgram p;
  const int32_t queries = p.input(3 * kDim), latents = p.input(3 * kLatent), keys = p.input(kDim), values = p.input(kLatent);
  const int32_t out = p.floats(3 * kLatent);
  p.program.kv.layers = {{0, 1, kDim, kLatent, KvFormat::kFloat32}};
  p.add(KvWrite{.keys = {keys}, .values = {values}, .layer = {0}, .rope = {0}});
  p.add(LatentAttention{.queries = {queries}, .latent_queries = {latents}, .output = {out}, .layer = {0}, .heads = 3, .rope = {0}, .scale = 0.3f});
  p.check(kernels, out, [&](int64_t row) {
    std::vector<double> all;
    for (int64_t head = 0; head < 3; ++head) {
      const std::vector<double> query = rotated(p.row(queries, row) + head * kDim, kDim, 4);
      const float *latent = p.row(latents, row) + head * kLatent;
      const auto score = [&](int64_t at) {
        return 0.3f * (inner_product(query, rotated(p.row(keys, at), kDim, 4)) +
                       inner_product({latent, latent + kLatent}, {p.row(values, at), p.row(values, at) + kLatent}));
      };
      for (double number : attended(row, kLatent, score, [&](int64_t at) { return p.row(values, at); }))
        all.push_back(number);
    }
    return all;
  }, 5e-5);
  p.refuses<LatentAttention>("queries of another width", [&](LatentAttention &o, Program &) { o.heads = 2; });
  p.refuses<LatentAttention>("an output of another width", [&](LatentAttention &o, Program &) { o.output = {keys}; });
  p.refuses<LatentAttention>("an output that is its input", [&](LatentAttention &o, Program &) { o.output = {latents}; });
  p.refuses<LatentAttention>("a scale of 0", [&](LatentAttention &o, Program &) { o.scale = 0; });
}

} // namespace dsedge::test
