"""How precisely linears take their inputs: by default, as a manifest asks, and as an export finds to be needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import edge
from edge.bundle import Bundle
from edge.errors import BundleError
from edge.kv import plan_layout
from edge.options import RuntimeOptions
from edge.runtime import kept_kv, open_runtime
from edge.session import Session
from exporters.parity import compare
from exporters.reference import Reference
from runtimes.native import precision
from tests.exporters.tiny import tiny_llama

pytest.importorskip("runtimes.native._native", reason="the native engine was not built here")
IDS = [int(i) for i in np.random.default_rng(3).integers(3, 300, 200)]


def outlying_mlp(folder: Path, limit: str) -> Bundle:
    """A Llama with one row of an MLP times 300 and one weight of a norm at 800."""
    source = tiny_llama(folder / "source")
    weights = load_file(source / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][5] *= 300
    weights["model.layers.0.post_attention_layernorm.weight"][3] = 800
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    (folder / "recipe.toml").write_text(f'{limit}\n[[rule]]\nmatch = "*"\nscheme = "int4-g128-sym"\n')
    return edge.export(source, folder / "tiny.dsedge", recipe=folder / "recipe.toml", targets=())


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return outlying_mlp(tmp_path_factory.mktemp("precision"), "")


def asking(bundle: Bundle, **native: str) -> Bundle:
    return Bundle(bundle.path, replace(bundle.manifest, precision={"native": native}))


def kl(bundle: Bundle, **options: Any) -> float:
    """What the engine costs, in nats a token, against the reference on the bundle's own weights."""
    runtime = open_runtime(bundle, plan_layout(bundle.spec, len(IDS)), RuntimeOptions(runtime="native", **options))
    found = Session(runtime).step(IDS, "all")
    runtime.close()
    return compare(Reference(bundle.graph, bundle.weights.read).run(IDS), found).mean_kl


def test_n37_inputs_and_keys_are_as_precise_as_a_manifest_asks(bundle: Bundle) -> None:
    roles = ("query", "key", "value", "output", "gate", "up", "down")
    wide = {**dict.fromkeys(roles, "int16"), "kv": "float32"}
    exact = {**dict.fromkeys((*roles, "head"), "float"), "kv": "float32"}
    usual, some, more, most = (kl(asking(bundle, **asked)) for asked in ({}, {"down": "int16"}, wide, exact))
    assert usual == kl(bundle)
    assert some != usual
    assert usual > 3e-2
    assert more < usual / 30
    assert most < 1e-9
    assert most == pytest.approx(kl(bundle, exact=True), abs=1e-10)


def test_kept_kv_is_as_the_manifest_asks(bundle: Bundle) -> None:
    """So `inspect` and the check against a container's memory count what the engine will keep."""
    asked = asking(bundle, kv="float32")
    for options, dtype in ((RuntimeOptions(), "float32"), (RuntimeOptions(kv_dtype="int8"), "int8")):
        assert set(kept_kv(asked, options)[1]) == {dtype}
    assert set(kept_kv(bundle, RuntimeOptions(runtime="native"))[1]) == {"float16"}


def test_n37_the_runtime_that_is_used_keeps_the_limit(tmp_path: Path) -> None:
    """By 16 bits in some linears or, at last, by float32: the manifest says which."""
    made = outlying_mlp(tmp_path, "activation_kl = 0.002")
    asked = made.manifest.precision["native"]
    assert asked["kv"] == "float32"
    assert set(asked.values()) <= {"int16", "float32", "float"}
    assert made.manifest.quality.parity is not None
    assert made.manifest.quality.parity.runtimes["native"].used.mean_kl <= 0.002
    assert edge.bundle.open_bundle(made.path).manifest.precision == made.manifest.precision
    assert kl(made) < 0.004  # on other tokens


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"native": {"down": "int4"}}, "no precision 'int4' for 'down'"),
        ({"native": {"middle": "int16"}}, "no precision 'int16' for 'middle'"),
        ({"native": {"kv": "int8"}}, "no precision 'int8' for 'kv'"),
    ],
)
def test_unknown_precisions_are_refused(asked: Mapping[str, Mapping[str, str]], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        precision.read(asked)
    assert precision.read({"other": {"down": "int4"}}) == precision.DEFAULT
