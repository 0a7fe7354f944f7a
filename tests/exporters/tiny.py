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
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.utils import logging

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


def load_reference(folder: Path) -> PreTrainedModel:
    """The folder as transformers reads it, float32, with eager attention."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


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
            if parameter.ndim == 1 and not name.endswith("bias"):
                parameter.uniform_(0.5, 1.5, generator=generator)
            else:
                parameter.normal_(0.0, model.config.initializer_range, generator=generator)
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
    """Convert a Llama or Qwen2 folder the way llama.cpp's converter does.

    quantization  a type of `gguf.quants.quantize`, or a function from a GGUF tensor name to one; vectors stay F32
    pre           tokenizer.ggml.pre; None leaves the key out
    metadata      further keys (str, bool, int or float), without the architecture's prefix
    rope_factors  the content of rope_freqs.weight
    """
    model = load_reference(folder)
    config = model.config
    arch = "llama" if config.model_type in ("llama", "mistral") else config.model_type
    writer = gguf.GGUFWriter(path, arch)
    _write_sizes(writer, config)
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
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        data = tensor.numpy()
        if arch == "llama" and ".q_proj." in name:
            data = _interleave(data, config.num_attention_heads)
        if arch == "llama" and ".k_proj." in name:
            data = _interleave(data, config.num_key_value_heads)
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        kind = "F32" if data.ndim == 1 else quantization if isinstance(quantization, str) else quantization(target)
        number = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(target, quantize(np.ascontiguousarray(data), number), raw_dtype=number)


def _interleave(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """llama.cpp's reordering of the rows of q and k: the halves of each head side by side."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _write_sizes(writer: gguf.GGUFWriter, config: Any) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    if head_dim * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)


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
