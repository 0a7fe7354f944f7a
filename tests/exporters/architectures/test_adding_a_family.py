"""docs/adding-a-family.md, followed to the letter: its module and its lines of tables make an exportable family."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import edge
from edge.bundle import Bundle
from edge.graph import build
from exporters import architectures
from exporters.architectures import describe
from exporters.checkpoint import gguf_config
from exporters.checkpoint.open import open_checkpoint
from exporters.parity import source_reader
from exporters.reference import Reference
from tests.exporters.tiny import load_reference, tiny_qwen3, write_gguf

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "adding-a-family.md").read_text(encoding="utf-8")
MODULE, LISTED, LISTED_GGUF, OWN_KEYS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def entry(line: str) -> tuple[str, object]:
    ((key, value),) = ast.literal_eval("{" + line + "}").items()
    return key, value


@pytest.fixture
def plover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's module where it says, and its lines in the tables that it names."""
    path = tmp_path / "plover.py"
    path.write_text(MODULE, encoding="utf-8")
    name = "exporters.architectures.plover"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(architectures.HUGGING_FACE, *entry(LISTED))
    monkeypatch.setitem(architectures.GGUF, *entry(LISTED_GGUF))
    monkeypatch.setitem(gguf_config.OWN_KEYS, *entry(OWN_KEYS))


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that a Plover computes, as transformers knows it: a Qwen3 with the same windows."""
    return tiny_qwen3(
        tmp_path_factory.mktemp("twin") / "model", use_sliding_window=True, sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip


@pytest.fixture
def folder(twin: Path, tmp_path: Path) -> Path:
    """A Plover checkpoint: the twin's weights under Plover's names, and a config as Plover writes it."""
    folder = tmp_path / "plover-1b"
    folder.mkdir()
    for file in twin.glob("tokenizer*"):
        (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(twin / "model.safetensors")
    renamed = {"q_norm": "query_scale", "k_norm": "key_scale"}
    named = {re.sub("[qk]_norm", lambda found: renamed[found[0]], name): value for name, value in weights.items()}
    save_file(named, folder / "model.safetensors")
    config = json.loads((twin / "config.json").read_text())
    for key in ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers", "model_type"):
        del config[key]
    config |= {"architectures": ["PloverForCausalLM"], "local_span": 8}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def expected_logits(twin: Path, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return load_reference(twin)(torch.tensor([ids])).logits[0].numpy()


def test_the_page_makes_a_family(plover: None, folder: Path, twin: Path) -> None:
    ids = [int(i) for i in np.random.default_rng(0).integers(3, 300, 40)]
    expected = expected_logits(twin, ids)
    checkpoint = open_checkpoint(folder)
    model = describe(checkpoint)
    assert model.spec.family == "plover"
    assert [layer.attention.window for layer in model.spec.layers] == [8, None]
    found = Reference(build(model.spec), source_reader(model.weights)).run(ids)
    checkpoint.close()
    assert np.abs(found - expected).max() < 1e-4 * expected.std()


def test_the_page_s_command_exports_it(plover: None, folder: Path) -> None:
    (command,) = re.findall(r"```sh\n(.*?)\n```", PAGE)
    program, verb, source, option, target = command.split()
    assert (program, verb, source.rstrip("/"), option) == ("dsedge", "export", folder.name, "--out")
    bundle: Bundle = edge.export(folder, folder.parent / target)
    assert bundle.spec.family == "plover"
    parity = bundle.manifest.quality.parity
    assert parity is not None
    assert all(found.exact.max_diff < 1e-3 for found in parity.runtimes.values())


def test_the_page_s_gguf_lines(plover: None, twin: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the architecture plover, made like one of Qwen3, with its window under the key that the page names."""
    path = folder / "plover.gguf"
    monkeypatch.setattr("tests.exporters.tiny_gguf.ARCHITECTURES", {"qwen3": "plover"})
    monkeypatch.setitem(gguf.MODEL_ARCH._member_map_, "PLOVER", gguf.MODEL_ARCH.QWEN3)
    write_gguf(twin, path, metadata={"attention.sliding_window": 8})
    checkpoint = open_checkpoint(path)
    model = describe(checkpoint)
    assert [layer.attention.window for layer in model.spec.layers] == [8, None]
    ids = list(range(3, 43))
    expected = expected_logits(twin, ids)
    found = Reference(build(model.spec), source_reader(model.weights)).run(ids)
    checkpoint.close()
    assert np.abs(found - expected).max() < 1e-4 * expected.std()


def test_families_are_data() -> None:
    """A spec and a name map: a module of a family that grows past this holds something else."""
    modules = {*architectures.HUGGING_FACE.values(), *architectures.GGUF.values()}
    lines = {name: len((ROOT / f"exporters/architectures/{name}.py").read_text().splitlines()) for name in modules}
    assert max(lines.values()) <= 65, lines
