// Attention of all heads over one latent and one rotated key of each token, in the absorbed form of multi-head latent
// attention (arXiv:2405.04434): what makes keys and values of a latent is a part of the queries and of what reads the
// output. Tasks are those of attention with a single kv head, whose value is the latent.
#include "ops/attention.hpp"

namespace dsedge {

namespace {

void verify_latent_attention(const Checker &check, const Instruction &i) {
  const LatentAttention &o = as<LatentAttention>(i);
  const KvLayer &layer = check.program.layer(o.layer);
  check.require(layer.kv_heads == 1, "a layer with more than one latent");
  check.require(o.heads > 0 && o.heads < 65536, "an impossible number of heads");
  const Buffer &queries = check.floats(o.queries), &latents = check.floats(o.latent_queries);
  check.require(queries.width == o.heads * layer.key_dim && latents.width == o.heads * layer.value_dim &&
                    check.floats(o.output).width == latents.width && !queries.wanted && o.output != o.queries &&
                    o.output != o.latent_queries,
                "queries or an output that do not fit its layer");
  check.require(o.scale > 0, "a scale that is not possible");
  check.rope(o.rope, layer.key_dim);
}

Cost latent_attention_cost(const Program &program, const Instruction &i) {
  const LatentAttention &o = as<LatentAttention>(i);
  const KvLayer &layer = program.layer(o.layer);
  return {0, static_cast<double>(o.heads) * (layer.key_dim + 2 * layer.value_dim), layer.ring};
}

} // namespace

extern const Op kLatentAttentionOp;
const Op kLatentAttentionOp = {.name = "latent_attention",
                               .sees_other_rows = true,
                               .verify = verify_latent_attention,
                               .cost = latent_attention_cost,
                               .run_rows = run_attention_rows,
                               .reserve = reserve_attention,
                               .plan = plan_attention_forward,
                               .tasks = attention_tasks,
                               .run_tasks = run_attention_tasks};

} // namespace dsedge
