"""A checkpoint of a large model's shape whose every tensor holds different numbers, written as a stream.

The numbers are bfloat16 with random signs and mantissas and four neighbouring exponents, so that no two layers are
alike, nothing is zero and nothing compresses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from edge.safetensors import plan_header

# Qwen2.5-7B's config.json, as far as it says what the model computes.
QWEN_7B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "torch_dtype": "bfloat16",
}
_SHARD_LAYERS = 7
_BLOCK = 1 << 24  # numbers written at a time
_KEPT, _EXPONENTS = np.uint16(0x81FF), np.uint16(0x3A00)  # sign, 2 exponent bits, mantissa; 2⁻¹¹ to 2⁻⁷

Shape = tuple[int, ...]


def write(folder: Path, layers: int, seed: int = 0) -> int:
    """Write a folder as `dsedge export` reads it, with that many layers; the number of parameters."""
    config = {**QWEN_7B, "num_hidden_layers": layers}
    shards = list(_shards(config))
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    random = np.random.SFC64(seed)
    for name, tensors in zip(names, shards, strict=True):
        _write_shard(folder / name, tensors, random)
    weight_map = {tensor: name for name, tensors in zip(names, shards, strict=True) for tensor in tensors}
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    _write_json(folder / "config.json", config)
    (folder / "tokenizer.json").write_text(_tokenizer(int(config["vocab_size"])).to_str(), encoding="utf-8")
    return sum(math.prod(shape) for tensors in shards for shape in tensors.values())


def size(layers: int) -> int:
    """Bytes of such a folder's weights."""
    config = {**QWEN_7B, "num_hidden_layers": layers}
    return 2 * sum(math.prod(shape) for tensors in _shards(config) for shape in tensors.values())


def _shards(config: dict[str, Any]) -> Iterator[dict[str, Shape]]:
    """Tensors by name, a few layers to a shard; embedding and head have their own."""
    hidden, vocab, layers = config["hidden_size"], config["vocab_size"], config["num_hidden_layers"]
    yield {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for first in range(0, layers, _SHARD_LAYERS):
        shard: dict[str, Shape] = {}
        for layer in range(first, min(first + _SHARD_LAYERS, layers)):
            shard.update({f"model.layers.{layer}.{name}": shape for name, shape in _layer(config).items()})
        yield shard
    yield {"lm_head.weight": (vocab, hidden)}


def _layer(config: dict[str, Any]) -> dict[str, Shape]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes: dict[str, Shape] = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    for name, rows in (("q", hidden), ("k", keys), ("v", keys)):
        shapes[f"self_attn.{name}_proj.weight"] = (rows, hidden)
        shapes[f"self_attn.{name}_proj.bias"] = (rows,)
    shapes["self_attn.o_proj.weight"] = (hidden, hidden)
    shapes.update({f"mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")})
    shapes["mlp.down_proj.weight"] = (hidden, inner)
    return shapes


def _write_shard(path: Path, tensors: dict[str, Shape], random: np.random.SFC64) -> None:
    header, infos = plan_header((name, "BF16", shape) for name, shape in tensors.items())
    assert infos.keys() == tensors.keys(), "sizes are multiples of 64 bytes, so nothing is padded"
    with open(path, "wb") as file:
        file.write(header)
        for shape in tensors.values():
            count = math.prod(shape)
            for start in range(0, count, _BLOCK):
                file.write(_numbers(random, min(_BLOCK, count - start)).data)


def _numbers(random: np.random.SFC64, count: int) -> npt.NDArray[np.uint16]:
    """`count` bfloat16 numbers, as their bits."""
    bits: npt.NDArray[np.uint16] = random.random_raw(-(-count // 4)).view(np.uint16)[:count]
    bits &= _KEPT
    bits |= _EXPONENTS
    return bits


def _tokenizer(rows: int) -> Tokenizer:
    """A token a byte, and so many that no text has that every row has one."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, *(f"[unused {index}]" for index in range(len(letters), rows))]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1), encoding="utf-8")
