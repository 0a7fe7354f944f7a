"""The commands of docs/release-model.yml, run in order by bash on two tiny models, and what a user makes of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import edge
from edge.bundle import open_bundle
from edge.cli import main
from tests.exporters.tiny import tiny_llama, tiny_qwen2

ROOT = Path(edge.__file__).parents[1]
WORKFLOW = ROOT / "docs" / "release-model.yml"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the job is one of bash")
# The programs that the job finds on its runner: dsedge with few tokens of each text, and stand-ins for the network.
PROGRAMS = {
    "dsedge": (
        "#!{python}\nimport sys\nfrom exporters.report import measure\nfrom edge.cli import main\n"
        "measure.TOKENS = 512\nsys.exit(main())\n"
    ),
    "pip": "#!/bin/sh\necho pip \"$@\" >> {log}\n",
    "hf": "#!/bin/sh\ncp -R {folder}/hub/$2 $4\n",
    "gh": "#!/bin/sh\necho gh \"$@\" >> {log}\nshift 3\ncp \"$@\" {folder}/published\n",
}  # fmt: skip


def steps() -> dict[str, str]:
    """The scripts of the workflow's steps by their names, indentation taken away."""
    found = re.findall(r"- name: (.*)\n(?:(?! {6}- ).*\n)*? {8}run: \|\n((?: {10}.*\n)+)", WORKFLOW.read_text("utf-8"))
    return {name: re.sub(r"^ {10}", "", script, flags=re.MULTILINE) for name, script in found}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The job's environment, in a folder with its repository, sources and keys."""
    for folder in ("bin", "published", "hub/example", "work"):
        (tmp_path / folder).mkdir(parents=True)
    tiny_llama(tmp_path / "hub/example/tale-135m")
    tiny_qwen2(tmp_path / "hub/example/tale-7b")
    for name, text in PROGRAMS.items():
        path = tmp_path / "bin" / name
        path.write_text(text.format(python=sys.executable, log=tmp_path / "log", folder=tmp_path))
        path.chmod(0o755)
    key, public = tmp_path / "secret.pem", tmp_path / "work" / "release-key.pub.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", public], check=True)
    (tmp_path / "work" / "sources").mkdir()
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DSEDGE_HOME", str(tmp_path / "home"))
    shared = dict(re.findall(r"^  ([A-Z]+): \"?(.*?)\"?$", WORKFLOW.read_text("utf-8"), re.MULTILINE))
    return {
        **os.environ, **shared, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT), "SIGNING_KEY": key.read_text(), "GITHUB_REF_NAME": "v1",
        "GATE": "kl<=100,worst.top1>=0,int8.kl<=100" if edge.runtime.support("native").devices else "kl<=100",
    }  # fmt: skip


def run(script: str, job: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """As the runner does: `bash -e`."""
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script], cwd=folder, env=job, capture_output=True, text=True, check=False
    )


def test_the_job_publishes_two_signed_bundles(
    job: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = steps()
    assert list(found) == [
        "Install", "Fetch the sources", "Export what passes the gate", "Sign", "Verify as a user would", "Publish",
    ]  # fmt: skip
    for name, script in found.items():
        done = run(script, job, tmp_path / "work")
        assert done.returncode == 0, f"{name}: {done.stderr}"
    assert not (tmp_path / "work" / "key.pem").exists()
    published = tmp_path / "published"
    assert sorted(path.name for path in published.iterdir()) == [
        "catalog.toml", "tale-7b-quality.html", "tale-7b.dsedge.tar", "tale-sub1b-quality.html",
        "tale-sub1b.dsedge.tar",
    ]  # fmt: skip
    # What a user does with it.
    monkeypatch.chdir(published)
    for name in ("tale-sub1b", "tale-7b"):
        subprocess.run(["tar", "-xf", f"{name}.dsedge.tar"], check=True)
        assert main(["pull", name, "--catalog", "catalog.toml"]) == 0
        assert main(["verify", name, "--pubkey", str(tmp_path / "work" / "release-key.pub.pem"), "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out.splitlines()[-1])["signed_by"]) == 64
        measured = open_bundle(tmp_path / "home" / "models" / f"{name}.dsedge").manifest.quality.measured
        assert measured is not None
        assert measured.other == "source"


def test_a_missed_gate_ends_the_job_and_leaves_the_reports(job: dict[str, str], tmp_path: Path) -> None:
    found = steps()
    assert run(found["Fetch the sources"], job, tmp_path / "work").returncode == 0
    done = run(found["Export what passes the gate"], {**job, "GATE": "code.kl<=1e-9"}, tmp_path / "work")
    assert done.returncode == 3
    assert "the gate failed: code.kl<=1e-09 asked for" in done.stderr
    left = sorted(path.name for path in (tmp_path / "work/release/tale").iterdir())
    assert left == ["tale-sub1b.quality.html", "tale-sub1b.quality.json"]
