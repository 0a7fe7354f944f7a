"""The Core ML target: what packages compute, what is refused, and what is the same between runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge
from edge.bundle import Bundle
from edge.coreml_interface import HIDDEN, MODEL, PACKAGE, RANGES
from edge.errors import OptionError, UnsupportedError
from edge.graph import build
from edge.layers import LayerSpec, Moe
from exporters import targets
from exporters.emit.coreml import toolkit
from exporters.reference import Reference
from exporters.targets import Asked
from runtimes.coreml_interpreter.check import check
from runtimes.coreml_interpreter.evaluate import Interpreter
from tests.coreml_host import COREML, package_of, run
from tests.exporters import tiny
from tests.exporters.exported import contents
from tests.exporters.tiny import load_reference, tiny_llama, tiny_qwen2
from tests.specs import gqa, small_spec

pytestmark = [pytest.mark.usefixtures("cache"), COREML]

IDS = [int(i) for i in np.random.default_rng(0).integers(3, 300, 30)]


def recipe(folder: Path, scheme: str, head: str = "int8-g32-sym") -> Path:
    path = folder / "recipe.toml"
    path.write_text(
        f'[[rule]]\nmatch = ["embed", "head"]\nscheme = "{head}"\n'
        f'[[rule]]\nmatch = "*.router"\nscheme = "float16"\n[[rule]]\nmatch = "*"\nscheme = "{scheme}"\n'
    )
    return path


def export(source: Path, out: Path, **options: Any) -> Bundle:
    return edge.export(source, out, targets=("coreml",), **{"contexts": (128,), **options})


def reference(bundle: Bundle) -> np.ndarray[Any, Any]:
    return Reference(bundle.graph, bundle.weights.read, context=64).run(IDS)


@pytest.mark.parametrize(
    ("make", "scheme"),
    [
        (tiny.tiny_gemma3, "int4-g32-sym"),  # windows, two ropes, norms with an offset, a scaled embedding
        (tiny.tiny_gemma2, "int8-g32-sym"),  # soft-caps
        (tiny.tiny_deepseek_v3, "int4-g32-zp"),  # latents; groups of experts, ranked with a bias
        (tiny.tiny_granitemoe, "float16"),
        (tiny.tiny_qwen2, "float32"),  # biases
    ],
)
def test_a_package_computes_what_the_reference_computes(
    make: Callable[[Path], Path], scheme: str, tmp_path: Path
) -> None:
    """Exactly: float32 sums in another order. With float16 where the package declares it: within its rounding."""
    made = export(make(tmp_path / "m"), tmp_path / "x.dsedge", recipe=recipe(tmp_path, scheme))
    package = package_of(made)
    check(package)
    expected = reference(made)
    exact, half = Interpreter(package, half=False), Interpreter(package, half=True)
    assert np.abs(run(made, exact, IDS) - expected).max() < 1e-4 * max(1.0, float(expected.std()))
    assert np.abs(run(made, exact, IDS[:9], "decode") - expected[:9]).max() < 1e-4 * max(1.0, float(expected.std()))
    ends = [6, 13, 20, 27, 29]
    assert np.abs(run(made, exact, IDS, "prefill") - expected[ends]).max() < 1e-4 * max(1.0, float(expected.std()))
    rounded = np.median(np.abs(run(made, half, IDS) - expected).max(axis=1))  # a router may choose another expert
    assert 1e-4 < rounded < 0.1 * float(expected.std())
    assert not half.overflows


def test_padded_groups_and_runs_of_schemes(tmp_path: Path) -> None:
    """Widths that no group divides; heads of q and of o in schemes of their own."""
    source = tiny_llama(tmp_path / "m", hidden_size=100, intermediate_size=90, head_dim=32)
    path = tmp_path / "r.toml"
    path.write_text(
        '[[rule]]\nmatch = "layers.*.attn.[qo]"\nheads = [1, 3]\nscheme = "float16"\n'
        '[[rule]]\nmatch = "*"\nscheme = "int4-g32-zp"\n'
    )
    made = export(source, tmp_path / "x.dsedge", recipe=path)
    assert len(made.weights.runs["layers.0.attn.o"]) == 4
    expected = reference(made)
    assert np.abs(run(made, Interpreter(package_of(made), half=False), IDS) - expected).max() < 1e-4 * expected.std()


def test_affine_offsets_are_rounded_by_what_is_stated(tmp_path: Path) -> None:
    made = export(tiny_llama(tmp_path / "m"), tmp_path / "x.dsedge", recipe=recipe(tmp_path, "int4-g32-affine"))
    expected = reference(made)
    found = run(made, Interpreter(package_of(made), half=False), IDS)
    assert 1e-4 < np.abs(found - expected).max() < 0.05 * expected.std()


def test_two_exports_are_equal_byte_for_byte(llama_folder: Path, tmp_path: Path) -> None:
    first, second = (export(llama_folder, tmp_path / f"{name}.dsedge", name="same") for name in "ab")
    assert contents(first.path) == contents(second.path)
    assert f"{PACKAGE}/Data/com.apple.CoreML/weights/weight.bin" in first.manifest.files
    assert first.manifest.minimum_os == {"iOS": "18.0", "macOS": "15.0"}
    assert first.manifest.graphs["coreml"].file == MODEL


def test_ranges_are_measured_and_told(llama_folder: Path, tmp_path: Path) -> None:
    made = export(llama_folder, tmp_path / "x.dsedge")
    told = json.loads((made.path / RANGES).read_text())
    assert set(told) == {op.output for op in made.graph.ops} | {f"/layers.{i}/attn/mix/scores" for i in range(2)}
    most = max(told.values())
    assert [
        note
        for note in made.manifest.quality.notes
        if note.startswith(f"coreml: the largest number on the text is {most:.5g}")
    ]


def scaled(folder: Path, factors: dict[str, float]) -> Path:
    """The folder's model with weights multiplied."""
    model = load_reference(folder)
    for name, parameter in model.named_parameters():
        for part, factor in factors.items():
            if part in name:
                parameter.data *= factor
    model.save_pretrained(folder)
    return folder


def test_o3_scores_beyond_float16_are_computed_in_float32(tmp_path: Path) -> None:
    """Scores of about 1e5: in float16 they are infinite, and their softmax no number."""
    source = scaled(tiny_qwen2(tmp_path / "m"), {"k_proj.bias": 1000.0, "q_proj.bias": 1000.0})
    made = export(source, tmp_path / "x.dsedge")
    told = json.loads((made.path / RANGES).read_text())
    assert told["/layers.0/attn/mix/scores"] > 65504
    interpreter = Interpreter(package_of(made), half=True)
    expected, found = reference(made), run(made, interpreter, IDS)
    assert np.isfinite(found).all()
    assert not interpreter.overflows
    assert (found.argmax(-1) == expected.argmax(-1)).mean() > 0.5
    assert [
        note
        for note in made.manifest.quality.notes
        if "float32 since float16 is too narrow: /layers.0/attn/mix/scores" in note
    ]


def test_o3_values_beyond_float16_are_float32(tmp_path: Path) -> None:
    """An MLP whose products pass 65,504, and a residual stream that does."""
    made = export(scaled(tiny_llama(tmp_path / "m"), {"gate_proj": 100.0, "up_proj": 1000.0}), tmp_path / "x.dsedge")
    told = json.loads((made.path / RANGES).read_text())
    assert min(told["/layers.0/mlp/act"], told["/layers.0/mlp/residual"]) > 65504
    interpreter = Interpreter(package_of(made), half=True)
    expected, found = reference(made), run(made, interpreter, IDS)
    assert not interpreter.overflows
    assert np.abs(found - expected).max() < 0.1 * expected.std()


def test_o3_keys_beyond_float16_stop_the_export(tmp_path: Path) -> None:
    source = scaled(tiny_qwen2(tmp_path / "m"), {"k_proj.bias": 1e6})
    with pytest.raises(
        UnsupportedError, match=r"coreml cannot be made .*attn/k_rope reaches .* and is kept as float16"
    ):
        export(source, tmp_path / "x.dsedge")
    assert not (tmp_path / "x.dsedge").exists()


def test_m1_no_constant_leaves_float16_and_a_row_that_sees_nothing_is_defined(
    llama_folder: Path, tmp_path: Path
) -> None:
    """The checker refuses such constants; all of the past is hidden, and padded rows see themselves."""
    made = export(llama_folder, tmp_path / "x.dsedge")
    package = package_of(made)
    for plan in check(package):
        for constant in plan.constants.values():
            if constant.type.dtype == "float16" and constant.offset is not None:
                assert np.abs(package.blobs.read(constant.offset, "float16", constant.type.shape)).max() <= -HIDDEN
    assert np.isfinite(run(made, Interpreter(package, half=True), IDS[:1])).all()


def test_m2_an_older_system_is_refused_before_any_work(llama_folder: Path, tmp_path: Path) -> None:
    for minimum_os, needed in (("iOS17", "iOS 18.0"), ("macOS14.5", "macOS 15.0")):
        with pytest.raises(UnsupportedError, match=f"4-bit weights .* need {needed}, and {minimum_os} was asked for"):
            export(llama_folder, tmp_path / "x.dsedge", minimum_os=minimum_os)
    with pytest.raises(OptionError, match="minimum_os is 'Windows95'; write such as iOS18"):
        export(llama_folder, tmp_path / "x.dsedge", minimum_os="Windows95")
    assert list(tmp_path.glob("*.dsedge")) == []


@pytest.mark.parametrize(
    ("contexts", "words"),
    [
        ((500,), "500; it must be a multiple of 32"),
        ((0,), "of 0"),
        ((), "needs a context of 128 at least"),
        ((64, 96), "needs a context of 128 at least"),
    ],
)
def test_contexts_that_are_none(contexts: tuple[int, ...], words: str, llama_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=words):
        export(llama_folder, tmp_path / "x.dsedge", contexts=contexts)
    with pytest.raises(OptionError, match="contexts and minimum_os are for the targets coreml, coreml-ane"):
        edge.export(llama_folder, tmp_path / "x.dsedge", targets=("onnx",), contexts=(128,))


def test_the_usual_contexts_are_cut_to_the_models_own_and_others_are_not() -> None:
    from exporters.emit.coreml.coreml_target import contexts

    graph = build(replace(small_spec(), context=100))
    assert contexts(Asked((512, 64, 512)), graph) == (64, 512)
    assert contexts(Asked(), graph) == (128,)


def test_mixtures_with_few_chosen_experts_are_refused_by_name() -> None:
    spec = small_spec(layers=(LayerSpec(gqa(head_dim=8), Moe(9, 2, 8)),))
    with pytest.raises(UnsupportedError, match=r"/layers.0/mlp/experts chooses 2 of 9 experts"):
        targets.choose(build(spec), ("coreml",))


def test_an_op_without_a_translation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from edge.ops import Rope
    from exporters.emit.coreml import program

    monkeypatch.delitem(program.HANDLERS, Rope)
    with pytest.raises(UnsupportedError, match=r"does not know op kind 'rope' \(/layers.0/attn/q_rope\)"):
        targets.choose(build(small_spec()), ("coreml",))


def test_without_coremltools_or_with_another_version_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = build(small_spec())
    monkeypatch.setattr(toolkit, "VERSION", "9.9")
    with pytest.raises(UnsupportedError, match=r"coremltools 9.0 is installed, and version 9.9 is needed: pip install"):
        targets.choose(graph, ("coreml",))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="the package coremltools is not installed: pip install"):
        targets.choose(graph, ("coreml",))
