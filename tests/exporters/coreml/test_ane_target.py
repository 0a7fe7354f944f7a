"""The package for the Neural Engine: what it computes, in its layout, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge
from edge import artefacts, coreml_ane_interface, rope
from edge.bundle import Bundle
from edge.coreml_ane_interface import BLOBS, HIDDEN, PACKAGE, sides
from edge.coreml_interface import Function
from edge.errors import BundleError, UnsupportedError
from edge.graph import build
from edge.layers import LayerSpec, Moe
from exporters import targets
from exporters.parity import compare
from exporters.reference import Reference
from runtimes.coreml_interpreter.evaluate import Interpreter
from runtimes.coreml_interpreter.model import Package
from tests.coreml_host import COREML
from tests.exporters import tiny
from tests.exporters.coreml.test_coreml_target import IDS, scaled
from tests.specs import gqa, small_spec

pytestmark = [pytest.mark.usefixtures("cache"), COREML]
Array = np.ndarray[Any, Any]


def run(bundle: Bundle, interpreter: Interpreter, ids: list[int], chunk: int) -> Array:
    """Logits of each chunk's last token."""
    function = Function("decode" if chunk == 1 else "prefill", 128)
    embedding, kept, found = bundle.weights.read("embed"), dict[str, list[Array]](), []
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        made = interpreter.run(function.name, _given(bundle, function, embedding[part], start, kept))
        count = len(coreml_ane_interface.parts(bundle.spec))
        found.append(np.concatenate([made[f"logits_{index}"][0, :, 0, 0] for index in range(count)]))
        for name, rows in made.items():
            if name.startswith("new"):
                kept.setdefault(name.replace("new", "past"), []).append(rows[:, :, : len(part)])
    return np.stack(found)


def _given(
    bundle: Bundle, function: Function, rows: Array, start: int, kept: dict[str, list[Array]]
) -> dict[str, Array]:
    positions = start + np.arange(function.rows)
    given = {name: np.zeros(value.shape, np.float32) for name, value in sides(bundle.spec, function)[0].items()}
    given["x"][0, :, 0, : len(rows)] = rows.T
    if function.kind == "prefill":
        given["pick"][..., len(rows) - 1] = 1
    for index, kind in enumerate(bundle.spec.ropes):
        cos, sin = rope.angles(kind, positions, context=64)
        given[f"cos_{index}"][0], given[f"sin_{index}"][0] = cos.T, sin.T
    for index, kv in enumerate(bundle.spec.kv_groups):
        slots = given[f"mask_{index}"].shape[1]
        held = np.arange(max(0, start - slots), start)
        given[f"mask_{index}"][:] = HIDDEN
        distance = positions - held[:, None]
        given[f"mask_{index}"][0, : len(held)] = np.where(distance < (kv.window or 1 << 30), 0, HIDDEN)
    for name, parts in kept.items():
        rows_of = np.concatenate(parts, 2)[:, :, -given[name].shape[2] :]
        given[name][:, :, : rows_of.shape[2]] = rows_of
    return given


def int8_rows(bundle: Bundle, name: str, start: int, stop: int | None) -> Array:
    """Rows in whole steps of a 127th of their largest number, a float16; vectors as float16, the embedding as it is."""
    rows = bundle.weights.read(name, start, stop)
    if rows.ndim == 1:
        return rows.astype(np.float16).astype(np.float32)
    if name == "embed":
        return rows
    steps = np.array([[np.float16(max(abs(row)) / 127)] for row in rows], np.float32)
    return np.asarray(np.round(rows / steps) * steps, np.float32)


def export(source: Path, out: Path) -> Bundle:
    recipe = out.parent / "r.toml"
    recipe.write_text('[[rule]]\nmatch = "*"\nscheme = "int8-g32-sym"\n')
    return edge.export(source, out, targets=("coreml-ane",), contexts=(128,), recipe=recipe)


@pytest.mark.parametrize(
    "make", [tiny.tiny_llama, tiny.tiny_qwen2, tiny.tiny_gemma2, tiny.tiny_gemma3, tiny.tiny_phi3, tiny.tiny_olmo2]
)
def test_the_package_computes_the_model(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly what the reference computes with int8 rows, in float16 within its rounding; both near the bundle's."""
    monkeypatch.setattr(coreml_ane_interface, "VOCABULARY", 128)  # three parts of the head
    made = export(make(tmp_path / "m"), tmp_path / "x.dsedge")
    expected = Reference(made.graph, made.weights.read, context=64).run(IDS)
    rounded = Reference(made.graph, lambda *rows: int8_rows(made, *rows), context=64).run(IDS)
    half = Interpreter(Package(made.path / PACKAGE), half=True)
    found = run(made, half, IDS, 1)
    assert not half.overflows
    assert compare(expected, found).mean_kl < 0.05
    exact = Interpreter(Package(made.path / PACKAGE), half=False)
    one = run(made, exact, IDS, 1)
    assert np.abs(run(made, exact, IDS, 7) - one[[6, 13, 20, 27, 29]]).max() < 1e-3
    if not made.spec.tied_head:  # the host embeds with rows that are not rounded
        assert np.abs(one - rounded).max() < 2e-4 * rounded.std()
        assert compare(one, found).mean_kl < 0.001
    assert [
        note for note in made.manifest.quality.notes if note.startswith("coreml-ane: 2 functions are well-formed; ")
    ]


def test_a_changed_byte_of_a_matrix_is_found(llama_folder: Path, tmp_path: Path) -> None:
    made = export(llama_folder, tmp_path / "x.dsedge")
    path = made.path / BLOBS
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)
    with pytest.raises(BundleError, match="is not the payload's"):
        artefacts.find("coreml-ane").check(made)


def test_what_float16_cannot_hold_is_refused_by_name(tmp_path: Path) -> None:
    source = scaled(tiny.tiny_llama(tmp_path / "m"), {"gate_proj": 100.0, "up_proj": 1000.0})
    with pytest.raises(
        UnsupportedError, match=r"coreml-ane cannot be made .*/layers.\d/mlp/\w+ reaches .* float16 there"
    ):
        export(source, tmp_path / "x.dsedge")


def test_experts_and_wide_products_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    moe = small_spec(layers=(LayerSpec(gqa(head_dim=8), Moe(4, 2, 8)),))
    with pytest.raises(UnsupportedError, match="does not know op kind 'router'"):
        targets.choose(build(moe), ("coreml-ane",))
    monkeypatch.setattr(coreml_ane_interface, "VOCABULARY", 4)
    with pytest.raises(UnsupportedError, match=r"/layers.0/attn/q has \d+ channels, and the Neural Engine takes 4"):
        targets.choose(build(small_spec()), ("coreml-ane",))
