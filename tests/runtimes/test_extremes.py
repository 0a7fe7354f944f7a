"""Known fault O3: sums that float16 cannot hold. What is stored is float16 or less, what is computed is float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import edge
from edge.bundle import Bundle
from edge.kv import plan_layout
from edge.options import RuntimeOptions
from edge.runtime import open_runtime, support
from edge.session import Session
from exporters.reference import Reference
from tests.exporters.tiny import load_reference, tiny_qwen2

HALF = 65504.0
RECIPE = '[[rule]]\nmatch = "*"\nscheme = "float32"\n'
# Each runtime that computes logits → how close its everyday graph must come, in standard deviations of the logits. The
# native engine keeps keys and values as float16 numbers there, and multiplies them as bfloat16 where the processor can;
# as exactly as it can, it keeps float32.
RUNTIMES = {"native": 1e-1 if "avx512bf16" in support("native").reason else 2e-2, "onnx": 2e-3}


def export(folder: Path, factors: dict[str, float]) -> tuple[Path, Bundle]:
    """A tiny Qwen2 whose tensors with these ends of names are scaled, in float32, and its bundle."""
    source = tiny_qwen2(folder / "source")
    weights = load_file(source / "model.safetensors")
    for end, factor in factors.items():
        for name in [name for name in weights if name.endswith(end)]:
            weights[name] = weights[name] * factor
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    (folder / "recipe.toml").write_text(RECIPE)
    return source, edge.export(source, folder / "tiny.dsedge", recipe=folder / "recipe.toml")


def expected_logits(source: Path, ids: list[int]) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        return load_reference(source)(torch.tensor([ids])).logits[0].numpy()


def run(bundle: Bundle, name: str, ids: list[int], *, exact: bool) -> np.ndarray[Any, Any]:
    if not support(name).devices:
        pytest.skip(support(name).reason)
    runtime = open_runtime(bundle, plan_layout(bundle.spec, 64), RuntimeOptions(runtime=name, exact=exact))
    try:
        session = Session(runtime)
        return np.concatenate([session.step(part, "all") for part in (ids[:9], ids[9:10], ids[10:])])
    finally:
        runtime.close()


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize(
    ("factors", "large"),
    [
        ({"k_proj.bias": 12_000.0}, "scores"),
        ({"down_proj.weight": 20_000.0}, "hidden"),
    ],
)
def test_o3_sums_beyond_float16(factors: dict[str, float], large: str, name: str, tmp_path: Path) -> None:
    source, bundle = export(tmp_path, factors)
    ids = [int(i) for i in np.random.default_rng(2).integers(3, 300, 24)]
    values: dict[str, np.ndarray[Any, Any]] = {}
    oracle = Reference(bundle.graph, bundle.weights.read)
    logits = oracle.run(ids, observe=lambda op, value: values.update({op.output: value}))
    assert magnitude(values, large) > 1e5 > HALF
    assert logits.std() > 1
    found = {
        "transformers": expected_logits(source, ids),
        "exact": run(bundle, name, ids, exact=True),
        "decoder": run(bundle, name, ids, exact=False),
    }
    for what, other in found.items():
        bound = RUNTIMES[name] if what == "decoder" else 2e-3
        assert np.abs(other - logits).max() < bound * logits.std(), what


def magnitude(values: dict[str, np.ndarray[Any, Any]], large: str) -> float:
    """The largest q·k of a layer and head, or number of the residual stream."""
    if large == "hidden":
        return max(float(np.abs(value).max()) for name, value in values.items() if name.endswith("/residual"))
    found = []
    for layer in range(2):
        q, k = (values[f"/layers.{layer}/attn/{part}_rope"].reshape(24, -1, 16) for part in "qk")
        found += [float(np.abs(q[:, head] @ k[:, head // 2].T).max()) for head in range(4)]
    return max(found)
