"""docs/adding-an-op.md, followed word for word on a copy of the tree: its op, in every reader, against transformers."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import edge

ROOT = Path(edge.__file__).parents[1]
PAGE = ROOT / "docs" / "adding-an-op.md"

pytestmark = pytest.mark.skipif(
    sys.platform == "win32"
    or not shutil.which("cmake")
    or not shutil.which("c++")
    or not importlib.util.find_spec("nanobind")
    or not (ROOT / "CMakeLists.txt").exists(),
    reason="needs CMake, a compiler, nanobind and the sources",
)

# A layer whose MLP is clipped: the export compares its runtimes with the reference, and this the reference with
# transformers.
SCRIPT = """
import sys
from pathlib import Path
import numpy as np
import torch
import edge
from edge import branches
from edge.graph import build
from edge.layers import Dense
from edge.ops.clip import Clip
from exporters import parity as check
from exporters.architectures import describe
from exporters.checkpoint.open import open_checkpoint
from exporters.parity import source_reader
from exporters.reference import Reference
from tests.exporters.tiny import load_reference, tiny_llama

folder = Path(sys.argv[1])
source = tiny_llama(folder / "source")
dense = branches.BRANCHES[Dense]
clipped = lambda builder, x, index, spec: builder.add(
    f"/layers.{index}/mlp/clip", (dense(builder, x, index, spec),), Clip(1.5)
)
ids = list(range(3, 43))
model = load_reference(source)
with torch.no_grad():
    plain = model(torch.tensor([ids])).logits[0].numpy()
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(lambda module, inputs, output: output.clamp(-1.5, 1.5))
    expected = model(torch.tensor([ids])).logits[0].numpy()
assert np.abs(plain - expected).max() > 0.1 * expected.std(), "the limit must matter"
branches.BRANCHES[Dense] = clipped
checkpoint = open_checkpoint(source)
described = describe(checkpoint)
found = Reference(build(described.spec), source_reader(described.weights)).run(ids)
assert np.abs(found - expected).max() < 1e-4 * expected.std()
checkpoint.close()
bundle = edge.export(source, folder / "clipped.dsedge", recipe="sub1b")
parity = bundle.manifest.quality.parity
for name, figures in sorted(parity.runtimes.items()):
    print(name, figures.exact.max_diff, figures.used.mean_kl)
ids = check.sample_ids(bundle, 40)
wanted = Reference(bundle.graph, bundle.weights.read, context=40).run(ids)
exact, used = (
    check.compare(wanted, check.run_graph(bundle, ids, exact=exact, runtime="torch")) for exact in (True, False)
)
print("torch", exact.max_diff, used.mean_kl)
"""


def follow(tree: Path) -> None:
    """Write the page's files, and put its lines into the tables that it names."""
    for language, place, body in re.findall(
        r"^```(python|c\+\+)\n(?:#|//) (\S+(?:: \S+)?)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S
    ):
        path, _, table = place.partition(": ")
        target = tree / path
        if not table:
            assert not target.exists(), f"{path} is there already"
            target.write_text(body, encoding="utf-8")
            continue
        text = target.read_text(encoding="utf-8")
        if table == "end":
            target.write_text(text + "\n" + body, encoding="utf-8")
            continue
        assert language == "python"
        lines, imports = body.split("# import\n")
        start = re.search(rf"^{table}: .*{{\n", text, re.M)
        assert start, f"{path} has no table {table}"
        text = text[: start.end()] + lines + text[start.end() :]
        text = text.replace(
            "from __future__ import annotations\n", f"from __future__ import annotations\n\n{imports}", 1
        )
        target.write_text(text, encoding="utf-8")


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_makes_an_op(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in ("edge", "exporters", "runtimes", "tests"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(ROOT / "CMakeLists.txt", tree)
    follow(tree)
    build = tmp_path / "build"
    run(
        "cmake",
        "-S",
        tree,
        "-B",
        build,
        f"-DPython_EXECUTABLE={sys.executable}",
        "-DCMAKE_BUILD_TYPE=Debug",
        "-DDSEDGE_TESTS=ON",
        cwd=tree,
    )
    run("cmake", "--build", build, "--parallel", "2", "--target", "_native", "test_ops", cwd=tree)
    assert run(build / "tests/runtimes/native/cpp/test_ops", cwd=tree).endswith("all passed\n")
    (extension,) = build.glob("_native*.so")
    shutil.copy(extension, tree / "runtimes" / "native")
    code = f"import sys; sys.path.insert(0, {str(tree)!r})\n{SCRIPT}"
    printed = run(sys.executable, "-S", "-c", NO_EDITABLE + code, tmp_path / "models", cwd=tree)
    found = {line.split()[0]: [float(word) for word in line.split()[1:]] for line in printed.splitlines()}
    assert set(found) == {"native", "onnx", "torch"}
    for exact, used in found.values():
        assert exact < 1e-3
        assert used < 0.05


# The tree's own modules are wanted, not those of the installed package: site-packages without its import hooks.
NO_EDITABLE = f"""
import sys
sys.path[1:1] = {[path for path in sys.path if "site-packages" in path]!r}
"""
