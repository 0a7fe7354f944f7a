"""Targets: what is made, what is left out or refused by name, and which runtimes an export judges."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import edge
from edge.bundle import Bundle
from edge.cli import main
from edge.contents import Artefact
from edge.decoder import RopeSpec
from edge.errors import OptionError, UnsupportedError
from edge.graph import build
from edge.layers import Dense, LayerSpec, Mla, Moe
from edge.options import GenerateOptions
from edge.runtime import automatic, support
from exporters import parity, targets
from exporters.targets import Context, Emitted
from tests.exporters.tiny import tiny_llama
from tests.specs import gqa, small_spec

ROOT = Path(edge.__file__).parents[1]
NATIVE = pytest.mark.skipif(not support("native").devices, reason="the native engine was not built")

pytestmark = pytest.mark.usefixtures("cache")


def test_names_of_targets() -> None:
    assert targets.parse("onnx") == ("onnx",)
    assert targets.parse("onnx, onnx") == ("onnx",)
    assert targets.parse("none") == ()
    with pytest.raises(OptionError, match="unknown target 'tflite'; known are onnx, coreml, coreml-ane, none"):
        targets.parse("onnx,tflite")


@NATIVE
def test_a_bundle_without_targets_runs_on_the_native_engine(llama_folder: Path, tmp_path: Path) -> None:
    made = edge.export(llama_folder, tmp_path / "x.dsedge", targets=())
    assert not list(made.path.glob("*.onnx"))
    assert (dict(made.manifest.graphs), set(made.manifest.artefacts)) == ({}, {"payload"})
    assert made.manifest.quality.parity is not None
    assert set(made.manifest.quality.parity.runtimes) == {"native"}
    with edge.load(made.path) as pipeline:
        assert len(pipeline.complete("hello", GenerateOptions(max_tokens=3, ignore_eos=True), raw=True).tokens) == 3
    with pytest.raises(UnsupportedError, match="holds no ONNX graph; export the model again with one"):
        edge.load(made.path, edge.RuntimeOptions(runtime="onnx"))


def test_a_target_of_the_table_is_given_the_draft_and_may_make_folders(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = ModuleType("printed")
    seen: list[Context] = []

    def emit(context: Context) -> Emitted:
        seen.append(context)
        (context.draft.path / "printed" / "inner").mkdir(parents=True)
        (context.draft.path / "printed" / "inner" / "page.txt").write_text(str(len(context.draft.graph.ops)))
        return Emitted(Artefact(("printed",), ()), {}, ("printed on paper",))

    module.TOOLS, module.refuse, module.emit = ("pytest",), (lambda graph, asked: ""), emit
    monkeypatch.setitem(sys.modules, "printed", module)
    monkeypatch.setitem(targets.TARGETS, "printed", "printed")
    made = edge.export(llama_folder, tmp_path / "x.dsedge", targets=("printed",))
    assert (seen[0].activation_kl, seen[0].parity is None) == (0.0005, False)
    assert made.manifest.artefacts["printed"] == Artefact(("printed",), ())
    assert "printed/inner/page.txt" in made.manifest.files
    assert "printed on paper" in made.manifest.quality.notes
    assert made.manifest.toolchain == {name: version(name) for name in ("dsedge", "numpy", "pytest", "tokenizers")}


@NATIVE
@pytest.mark.parametrize("head_dim", [10, 12, 20])
def test_n23_a_shape_that_onnx_cannot_hold_goes_without_it_or_is_refused(head_dim: int, tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "m", head_dim=head_dim)
    made = edge.export(source, tmp_path / "x.dsedge")
    reason = rf"heads whose width is a multiple of 8, and they are {head_dim} wide here"
    assert [note for note in made.manifest.quality.notes if "made without the target onnx: " in note and reason in note]
    assert made.manifest.quality.parity is not None
    assert made.manifest.quality.parity.runtimes["native"].exact.max_diff < 1e-3
    with pytest.raises(UnsupportedError, match="target onnx cannot be made of this model: .*" + reason):
        edge.export(source, tmp_path / "y.dsedge", targets=("onnx",))
    assert not (tmp_path / "y.dsedge").exists()


def test_ops_that_onnx_has_no_translation_of_leave_it_out() -> None:
    moe = small_spec(layers=(LayerSpec(gqa(head_dim=8), Moe(4, 2, 8)),), ropes=(RopeSpec(8, 1e4),))
    latent = small_spec(layers=(LayerSpec(Mla(2, None, 8, 8, 8, 8, 0.5), Dense(8)),), ropes=(RopeSpec(8, 1e4),))
    for spec, op in ((moe, "'router' .*mlp/routing"), (latent, "'latent_attention' .*attn/mix")):
        chosen, (note,) = targets.choose(build(spec), None)
        assert chosen == ()
        assert re.search(f"without the target onnx: the ONNX emitter does not know op kind {op}", note)
        with pytest.raises(UnsupportedError, match="target onnx cannot be made"):
            targets.choose(build(spec), ("onnx",))
    assert targets.choose(build(small_spec(attention={"head_dim": 8})), None) == (("onnx",), ())


def test_n15_every_runtime_that_a_bundle_serves_is_judged_and_the_one_that_auto_picks_named(
    llama_bundle: Bundle,
) -> None:
    usable = [name for name in ("native", "onnx") if support(name).devices]
    report = parity.check(llama_bundle)
    assert (list(report.runtimes), report.auto, report.source) == (usable, automatic(), None)
    made = llama_bundle.manifest.quality.parity
    assert made is not None
    assert made.auto is not None
    assert made.total == made.runtimes[made.auto].total
    for name in usable:
        found = made.runtimes[name]
        assert found.used == report.runtimes[name].used  # the same bits again
        assert found.total is not None
        assert made.source is not None
        assert 0 < found.total.mean_kl < 10 * made.source.mean_kl


@NATIVE
def test_n37_a_runtime_that_costs_more_than_the_recipe_allows_is_named(llama_folder: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text('activation_kl = 1e-15\n[[rule]]\nmatch = "*"\nscheme = "int4-g32-sym"\n')
    made = edge.export(llama_folder, tmp_path / "x.dsedge", recipe=recipe).manifest.quality
    assert made.parity is not None
    dear = [name for name, found in made.parity.runtimes.items() if found.used.mean_kl > 1e-15]
    assert [note.split(" costs")[0] for note in made.notes if "as precise as they get" in note] == [
        f"runtime {name}" for name in dear
    ]


WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import importlib.metadata, importlib.util
real, spec = importlib.metadata.version, importlib.util.find_spec
def version(name):
    if name in {absent!r}:
        raise importlib.metadata.PackageNotFoundError(name)
    return real(name)
importlib.metadata.version = version
importlib.util.find_spec = lambda name, package=None: None if name in {absent!r} else spec(name, package)
from edge.cli import main
raise SystemExit(main(sys.argv[1:]))
"""


@NATIVE
@pytest.mark.parametrize(
    ("absent", "graphs", "words"),
    [
        (("onnxruntime",), 2, "note: decoder.onnx was not run: the package onnxruntime is not installed"),
        (("onnxruntime", "onnx"), 0, "note: made without the target onnx: the package onnx is not installed"),
    ],
)
def test_n16_without_onnx_runtime_a_model_is_exported_checked_and_run(
    absent: tuple[str, ...], graphs: int, words: str, llama_folder: Path, tmp_path: Path
) -> None:
    def dsedge(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", WITHOUT.format(absent=absent), *arguments],
            cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    out = tmp_path / "x.dsedge"
    done = dsedge("export", str(llama_folder), "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
    assert "quality: mean KL" in done.stderr
    assert "runtime native" in done.stderr
    assert len(list(out.glob("*.onnx"))) == graphs
    checked = dsedge("verify", str(out))
    assert checked.returncode == 0, checked.stderr
    assert "native against the reference" in checked.stdout
    answered = dsedge("run", str(out), "hello", "--raw", "--max-tokens", "2")
    assert answered.returncode == 0, answered.stderr


def test_an_export_imports_neither_onnx_nor_its_runtime_without_a_need() -> None:
    code = "import sys, exporters.export; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"onnx", "onnxruntime", "torch", "transformers"} & set(done.stdout.split()) == set()
    assert importlib.util.find_spec("onnx") is not None


def test_a_runtime_that_does_not_know_the_model_is_told_and_the_others_are_judged(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> Any:
        raise UnsupportedError("the native engine does not know the op gargle")

    monkeypatch.setattr("runtimes.native.open_model", refuse)
    monkeypatch.setattr("exporters.emit.onnx_target.refuse", lambda graph, asked: "it does not know the op gurgle")
    made = edge.export(llama_folder, tmp_path / "x.dsedge")
    notes = made.manifest.quality.notes
    assert "made without the target onnx: it does not know the op gurgle" in notes
    parity = made.manifest.quality.parity
    assert parity is not None
    assert (dict(parity.runtimes), parity.auto) == ({}, None)
    assert parity.refused.keys() == {"native"}
    assert main(["inspect", str(made.path), "--full"]) == 0
    assert "native was not compared: " in capsys.readouterr().out
