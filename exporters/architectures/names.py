"""Canonical weight names and what checkpoints call them. `{}` stands for the number of the layer, `{expert}` for that
of an expert, where a checkpoint keeps each one's matrix in a tensor of its own.

A family whose names differ overrides single entries; ".weight" and ".bias" are the same everywhere, unless a map has an
entry for a bias itself, which then is the whole name.
"""

from __future__ import annotations

from collections.abc import Mapping

EXPERT = "{expert}"
HUGGING_FACE: Mapping[str, str] = {
    "embed": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attn_norm": "model.layers.{}.input_layernorm",
    "attn.q": "model.layers.{}.self_attn.q_proj",
    "attn.k": "model.layers.{}.self_attn.k_proj",
    "attn.v": "model.layers.{}.self_attn.v_proj",
    "attn.o": "model.layers.{}.self_attn.o_proj",
    "attn.q_norm": "model.layers.{}.self_attn.q_norm",
    "attn.k_norm": "model.layers.{}.self_attn.k_norm",
    "mlp_norm": "model.layers.{}.post_attention_layernorm",
    "mlp.gate": "model.layers.{}.mlp.gate_proj",
    "mlp.up": "model.layers.{}.mlp.up_proj",
    "mlp.down": "model.layers.{}.mlp.down_proj",
    "mlp.router": "model.layers.{}.mlp.gate",
    "mlp.experts.gate": "model.layers.{}.mlp.experts.{expert}.gate_proj",
    "mlp.experts.up": "model.layers.{}.mlp.experts.{expert}.up_proj",
    "mlp.experts.down": "model.layers.{}.mlp.experts.{expert}.down_proj",
    "mlp.shared.gate": "model.layers.{}.mlp.shared_experts.gate_proj",
    "mlp.shared.up": "model.layers.{}.mlp.shared_experts.up_proj",
    "mlp.shared.down": "model.layers.{}.mlp.shared_experts.down_proj",
}

GGUF: Mapping[str, str] = {
    "embed": "token_embd",
    "norm": "output_norm",
    "head": "output",
    "attn_norm": "blk.{}.attn_norm",
    "attn.q": "blk.{}.attn_q",
    "attn.k": "blk.{}.attn_k",
    "attn.v": "blk.{}.attn_v",
    "attn.o": "blk.{}.attn_output",
    "attn.q_norm": "blk.{}.attn_q_norm",
    "attn.k_norm": "blk.{}.attn_k_norm",
    "attn_post_norm": "blk.{}.post_attention_norm",
    "mlp_norm": "blk.{}.ffn_norm",
    "mlp_post_norm": "blk.{}.post_ffw_norm",
    "mlp.gate": "blk.{}.ffn_gate",
    "mlp.up": "blk.{}.ffn_up",
    "mlp.down": "blk.{}.ffn_down",
    "mlp.router": "blk.{}.ffn_gate_inp",
    "mlp.experts.gate": "blk.{}.ffn_gate_exps",
    "mlp.experts.up": "blk.{}.ffn_up_exps",
    "mlp.experts.down": "blk.{}.ffn_down_exps",
}


def source_name(canonical: str, names: Mapping[str, str]) -> str:
    """`layers.3.attn.q` → `model.layers.3.self_attn.q_proj.weight`; a name that ends in `.bias` keeps that end.

    `{expert}` stays in the result.
    """
    part, layer = canonical, ""
    if part.startswith("layers."):
        _, layer, part = part.split(".", 2)
    if part in names and part.endswith(".bias"):
        return names[part].format(layer, expert=EXPERT)
    end = ".bias" if part.endswith(".bias") else ".weight"
    return names[part.removesuffix(".bias")].format(layer, expert=EXPERT) + end


def part_of(canonical: str) -> str:
    """`layers.3.attn.q.bias` → `attn.q`: the entry of a name map that a weight belongs to."""
    part = canonical.split(".", 2)[2] if canonical.startswith("layers.") else canonical
    return part.removesuffix(".bias")
