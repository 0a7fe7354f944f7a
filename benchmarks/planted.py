"""A model of Qwen2's shape with a few very large channels in its keys, made of another model's weights.

Qwen2 and 2.5 have biases of the key projection, in the first and last layers, that are far above everything else. Here
a Llama-shaped model gets biases: in its first and last layer one rotary pair of each head of keys has a bias of FACTOR
times the size of its channels, and its queries are FACTOR times smaller, so that scores stay of the size that they had.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge import graph as graphs
from edge.decoder import DecoderSpec
from edge.layers import Dense, Gqa
from edge.ops import Weight
from edge.safetensors import plan_header
from exporters.architectures import Model, describe
from exporters.architectures.names import HUGGING_FACE, source_name
from exporters.checkpoint.open import open_checkpoint

FACTOR = 30.0
_PAIR = 3  # of each head; its other half is half a head behind it
Float = npt.NDArray[np.float32]


def write(source: Path, folder: Path) -> Path:
    """Write the model as a folder that `dsedge export` reads. Raises what opening the source does."""
    folder.mkdir(parents=True)
    with contextlib.closing(open_checkpoint(source)) as checkpoint:
        model, files = describe(checkpoint), checkpoint.tokenizer()
        tensors = dict(_tensors(model))
        (folder / "tokenizer.json").write_text(files.tokenizer, encoding="utf-8")
    header, infos = plan_header((name, "F32", values.shape) for name, values in tensors.items())
    with open(folder / "model.safetensors", "wb") as file:
        file.write(header)
        for name, info in infos.items():
            file.seek(info.start)
            file.write(tensors[name].tobytes() if name in tensors else bytes(info.stop - info.start))
    (folder / "config.json").write_text(json.dumps(_config(model.spec)), encoding="utf-8")
    return folder


def _tensors(model: Model) -> Iterator[tuple[str, Float]]:
    planted = {f"layers.{index}.attn_norm": f"layers.{index}.attn." for index in (0, len(model.spec.layers) - 1)}
    for weight in graphs.build(model.spec).weights:
        values = model.weights[weight.name].read()
        norm = next((name for name, path in planted.items() if weight.name.startswith(path)), None)
        if weight.role in ("query", "key", "value"):
            bias = np.zeros(len(values), np.float32)
            if weight.role == "key" and norm:
                sizes = np.linalg.norm(values * model.weights[norm].read(), axis=1)
                bias[_channels(weight)] = np.float32(FACTOR) * sizes.mean()
            yield source_name(f"{weight.name}.bias", HUGGING_FACE), bias
        if weight.role == "query" and norm:
            values = values.copy()
            values[_channels(weight)] /= np.float32(FACTOR)
        yield source_name(weight.name, HUGGING_FACE), np.ascontiguousarray(values, np.float32)


def _channels(weight: Weight) -> npt.NDArray[np.intp]:
    """The rows of the pair, of every head."""
    heads = np.arange(0, weight.shape[0], weight.head_dim)
    return np.add.outer(heads, [_PAIR, _PAIR + weight.head_dim // 2]).ravel()


def _config(spec: DecoderSpec) -> dict[str, object]:
    attention, mlp = spec.layers[0].attention, spec.layers[0].mlp
    assert isinstance(attention, Gqa)
    assert isinstance(mlp, Dense)
    assert attention.rope is not None
    return {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": mlp.activation,
        "hidden_size": spec.hidden_size, "intermediate_size": mlp.size, "num_hidden_layers": len(spec.layers),
        "num_attention_heads": attention.heads, "num_key_value_heads": attention.kv_heads,
        "vocab_size": spec.vocab_size, "max_position_embeddings": spec.context, "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.ropes[attention.rope].theta, "tie_word_embeddings": spec.tied_head,
        "use_sliding_window": False,
    }  # fmt: skip
