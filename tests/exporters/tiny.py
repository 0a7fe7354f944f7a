"""Tiny seeded checkpoints made with transformers and the gguf package: independent of everything in `exporters`.

Weights are drawn so wide that attention is peaked and logits have a standard deviation over 1, and norms and biases
are random too: with the libraries' own initial values, many mistakes would not show.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf.quants import quantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    GraniteMoeConfig,
    GraniteMoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MinistralConfig,
    MinistralForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)
from transformers.utils import logging

from tests.exporters import tiny_gguf

logging.disable_progress_bar()

VOCAB = 300
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TRAINING = [
    "The quick brown fox jumps over the lazy dog; the other dogs sleep there.",
    "Paris is the capital of France, and then there is the rest of the country.",
    "for index in range(10): print(index, 'and then', index + 1)",
] * 4

SIZES: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 2,
}


def tiny_llama(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    """A Llama folder: weights, config, tokenizer. `config` overrides LlamaConfig fields."""
    return _save(LlamaForCausalLM(LlamaConfig(**{**SIZES, **config})), folder, seed)


def tiny_qwen2(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    """A Qwen2 folder with non-zero biases on q, k and v."""
    return _save(Qwen2ForCausalLM(Qwen2Config(**{**SIZES, **config})), folder, seed)


def tiny_mistral(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    return _save(MistralForCausalLM(MistralConfig(**{**SIZES, **config})), folder, seed)


def tiny_ministral(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    return _save(MinistralForCausalLM(MinistralConfig(**{**SIZES, "head_dim": 16, **config})), folder, seed)


def tiny_qwen3(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    """A Qwen3 folder whose head_dim is not hidden / heads."""
    return _save(Qwen3ForCausalLM(Qwen3Config(**{**SIZES, "head_dim": 32, **config})), folder, seed)


def tiny_gemma(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    return _save(GemmaForCausalLM(GemmaConfig(**{**SIZES, "head_dim": 32, **config})), folder, seed)


def tiny_gemma2(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    """A Gemma 2 folder: a window layer, then a global one, with soft-caps low enough to bend every score."""
    own = {"head_dim": 32, "query_pre_attn_scalar": 12, "sliding_window": 8}
    caps = {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 8.0}
    return _save(Gemma2ForCausalLM(Gemma2Config(**{**SIZES, **own, **caps, **config})), folder, seed)


GEMMA3: Mapping[str, Any] = {
    **SIZES,
    "head_dim": 32,
    "query_pre_attn_scalar": 24,
    "sliding_window": 8,
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}


def tiny_gemma3(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    """A Gemma 3 folder: two window layers to a global one, each kind with its own rope."""
    return _save(Gemma3ForCausalLM(Gemma3TextConfig(**{**GEMMA3, **config})), folder, seed)


def tiny_gemma3_vision(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    """The same decoder under a model that takes images too. `config` overrides fields of its text config."""
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "image_size": 28, "patch_size": 14,
    }  # fmt: skip
    tokens = {"boi_token_index": 297, "eoi_token_index": 298, "image_token_index": 299, "mm_tokens_per_image": 4}
    text = {**GEMMA3, **config}
    whole = Gemma3Config(text_config=text, vision_config=vision, initializer_range=SIZES["initializer_range"], **tokens)
    return _save(Gemma3ForConditionalGeneration(whole), folder, seed)


def tiny_phi3(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    return _save(Phi3ForCausalLM(Phi3Config(**{**SIZES, "pad_token_id": 0, **config})), folder, seed)


def tiny_smollm3(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    """A SmolLM3 folder whose second layer has no rope."""
    own = {"no_rope_layer_interval": 2, "pad_token_id": 0}
    return _save(SmolLM3ForCausalLM(SmolLM3Config(**{**SIZES, **own, **config})), folder, seed)


def tiny_olmo2(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    return _save(Olmo2ForCausalLM(Olmo2Config(**{**SIZES, **config})), folder, seed)


def tiny_olmo3(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    """An OLMo 3 folder: three window layers, then a global one."""
    own = {"sliding_window": 8, "num_hidden_layers": 4}
    return _save(Olmo3ForCausalLM(Olmo3Config(**{**SIZES, **own, **config})), folder, seed)


def tiny_granite(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    own = {"embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.6, "logits_scaling": 2.5}
    return _save(GraniteForCausalLM(GraniteConfig(**{**SIZES, **own, **config})), folder, seed)


EXPERTS: Mapping[str, Any] = {"num_experts_per_tok": 3, "moe_intermediate_size": 40}


def tiny_qwen3_moe(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    """A Qwen3-MoE folder: a dense layer, then one of eight experts."""
    own = {"head_dim": 32, "num_experts": 8, "mlp_only_layers": [0], "norm_topk_prob": True}
    return _save(Qwen3MoeForCausalLM(Qwen3MoeConfig(**{**SIZES, **EXPERTS, **own, **config})), folder, seed)


def tiny_olmoe(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    own = {"num_experts": 8, "num_experts_per_tok": 3, "pad_token_id": 0}
    return _save(OlmoeForCausalLM(OlmoeConfig(**{**SIZES, **own, **config})), folder, seed)


def tiny_granitemoe(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    own = {"embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.6, "logits_scaling": 2.5}
    experts = {"num_local_experts": 8, "num_experts_per_tok": 3}
    return _save(GraniteMoeForCausalLM(GraniteMoeConfig(**{**SIZES, **own, **experts, **config})), folder, seed)


LATENT: Mapping[str, Any] = {
    **SIZES, **EXPERTS, "num_key_value_heads": 4, "q_lora_rank": None, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 24, "n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "num_hidden_layers": 3,
}  # fmt: skip


def tiny_deepseek_v2(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    """A DeepSeek-V2-Lite folder: queries straight from the input, a dense layer, then experts and shared ones."""
    return _save(DeepseekV2ForCausalLM(DeepseekV2Config(**{**LATENT, **config})), folder, seed)


def tiny_deepseek_v3(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    """A DeepSeek-V3 folder: queries through a bottleneck, experts of two of four groups, ranked with a bias."""
    own = {"q_lora_rank": 48, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}
    return _save(DeepseekV3ForCausalLM(DeepseekV3Config(**{**LATENT, **own, **config})), folder, seed)


def load_reference(folder: Path) -> PreTrainedModel:
    """The folder as transformers reads it, float32, with eager attention."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    return model.eval()


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of 300 tokens that splits like SmolLM's: digits alone, then GPT-2's expression."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    assert tokenizer.get_vocab_size() == VOCAB
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        pad_token=SPECIAL[0],
        chat_template=TEMPLATE,
    )


def _save(model: PreTrainedModel, folder: Path, seed: int) -> Path:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                parameter.uniform_(1.5, 3.5, generator=generator)
            elif parameter.ndim == 1 and not name.endswith("bias"):
                parameter.uniform_(0.5, 1.5, generator=generator)
            else:
                parameter.normal_(0.0, model.config.initializer_range, generator=generator)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0.0, 0.2, generator=generator)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def write_gguf(
    folder: Path,
    path: Path,
    *,
    quantization: str | Callable[[str], str] = "F32",
    pre: str | None = "smollm",
    metadata: Mapping[str, Any] | None = None,
    rope_factors: npt.NDArray[np.float32] | None = None,
) -> Path:
    """Convert a folder the way llama.cpp's converter does.

    quantization  a type of `gguf.quants.quantize`, or a function from a GGUF tensor name to one; vectors stay F32
    pre           tokenizer.ggml.pre; None leaves the key out
    metadata      further keys (str, bool, int or float), without the architecture's prefix
    rope_factors  the content of rope_freqs.weight
    """
    model = load_reference(folder)
    config = model.config
    arch = tiny_gguf.architecture(config)
    writer = gguf.GGUFWriter(path, arch)
    tiny_gguf.write_sizes(writer, config)
    _write_tokenizer(writer, folder, pre)
    for key, value in (metadata or {}).items():
        add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        add[type(value)](key if key.startswith(("tokenizer.", "general.")) else f"{arch}.{key}", value)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    _write_tensors(writer, model, arch, quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_tensors(
    writer: gguf.GGUFWriter, model: PreTrainedModel, arch: str, quantization: str | Callable[[str], str]
) -> None:
    config = model.config
    known = {name: member for member, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(known.get(arch) or gguf.MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        data = tiny_gguf.convert(name, tensor.numpy(), config)
        tensors = tiny_gguf.expert_tensors(name, data)
        for target, part in (tensors or {names.get_name(name, try_suffixes=(".weight", ".bias")): data}).items():
            plain = part.ndim == 1 or "ffn_gate_inp" in target
            kind = "F32" if plain else quantization if isinstance(quantization, str) else quantization(target)
            number = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(target, quantize(np.ascontiguousarray(part), number), raw_dtype=number)


def _write_tokenizer(writer: gguf.GGUFWriter, folder: Path, pre: str | None) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    control = set(tokenizer.all_special_ids) | {1}
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if index in control else 1 for _, index in vocabulary])
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    writer.add_token_merges([" ".join(pair) for pair in state["model"]["merges"]])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(False)
    writer.add_chat_template(tokenizer.chat_template)
