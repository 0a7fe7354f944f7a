"""Bundles of a model's shape whose every byte of codes is drawn anew, written as a stream: nothing is exported.

They compute numbers of ordinary size and mean nothing. There is no graph in them: backends read the payload alone.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from edge import bundle as bundles
from edge.bundle import Bundle, FileInfo, Manifest, TokenizerInfo
from edge.decoder import DecoderSpec, RopeSpec
from edge.graph import build
from edge.layers import Dense, Gqa, LayerSpec
from edge.payload import parse_scheme
from edge.safetensors import PADDING, plan_header
from edge.sums import sha256
from edge.weights import describe

# name → (layers, hidden, inner, heads, kv_heads, vocabulary); heads are of 128 numbers. Qwen2.5's sizes.
SHAPES: dict[str, tuple[int, int, int, int, int, int]] = {
    "1.5b": (28, 1536, 8960, 12, 2, 151_936),
    "7b": (28, 3584, 18_944, 28, 4, 152_064),
}
_HEAD_DIM, _CONTEXT = 128, 4096
_BODY, _ENDS = "int4-g32-sym", "int8-g32-sym"
_SPREAD = {4: 4.6, 8: 74.0}  # standard deviation of codes that are all as likely
_BLOCK = 1 << 24


def spec_of(name: str, layers: int | None = None) -> DecoderSpec:
    """The decoder of a shape, with fewer layers if that is asked for."""
    count, hidden, inner, heads, kv_heads, vocab = SHAPES[name]
    attention = Gqa(heads=heads, kv_heads=kv_heads, head_dim=_HEAD_DIM, scale=_HEAD_DIM**-0.5)
    return DecoderSpec(
        family=f"{name}-shape",
        vocab_size=vocab,
        hidden_size=hidden,
        layers=(LayerSpec(attention, Dense(inner)),) * (layers or count),
        ropes=(RopeSpec(_HEAD_DIM, 1e6),),
        context=_CONTEXT,
        norm_eps=1e-6,
    )


def write(path: Path, spec: DecoderSpec, seed: int = 0) -> Bundle:
    """Write a bundle to a folder that does not exist yet, and open it."""
    graph = build(spec)
    schemes = {
        weight.name: _ENDS if weight.role in ("embed", "head") else _BODY if weight.is_matrix else "float32"
        for weight in graph.weights
    }
    columns = {weight.name: weight.shape[-1] for weight in graph.weights}
    header, infos = plan_header([entry for weight in graph.weights for entry in describe(weight, schemes[weight.name])])
    random = np.random.SFC64(seed)
    path.mkdir(parents=True)
    with open(path / bundles.WEIGHTS, "wb") as file:
        file.write(header)
        for name, info in infos.items():
            weight, _, part = name.rpartition(".")
            size = info.stop - info.start
            if name.startswith(PADDING):
                file.write(bytes(size))
            elif part == "codes":
                for start in range(0, size, _BLOCK):
                    count = min(_BLOCK, size - start)
                    file.write(random.random_raw(-(-count // 8)).view(np.uint8)[:count].data)
            elif part == "scales":
                scheme = parse_scheme(schemes[weight])
                assert scheme is not None
                scale = 1 / (_SPREAD[scheme.bits] * math.sqrt(columns[weight]))
                file.write(np.full(size // 2, scale, np.float16).data)
            else:
                file.write(np.ones(size // 4, np.float32).data)
    (path / bundles.TOKENIZER).write_text(json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": []}}))
    files = {file.name: FileInfo(file.stat().st_size, sha256(file)) for file in sorted(path.iterdir())}
    manifest = Manifest(
        name=spec.family, spec=spec, schemes=schemes, recipe={}, graphs={}, kv={}, toolchain={}, files=files,
        tokenizer=TokenizerInfo(bos=None, eos=(), special={}, add_bos=False),
    )  # fmt: skip
    bundles.write_manifest(path, manifest)
    return bundles.open_bundle(path)
