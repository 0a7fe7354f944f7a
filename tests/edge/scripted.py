"""What the tests over the scripted runtime share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from edge.bundle import Bundle, open_bundle, sha256
from edge.pipeline import Pipeline
from runtimes.scripted import ScriptedRuntime

OpenScripted = Callable[..., Pipeline]
FOX = "The quick brown fox"


def runtime(pipeline: Pipeline) -> ScriptedRuntime:
    assert isinstance(pipeline.runtime, ScriptedRuntime)
    return pipeline.runtime


def without(bundle: Bundle, name: str) -> Path:
    """The path of a bundle whose manifest no longer lists that file."""
    manifest = json.loads((bundle.path / "manifest.json").read_text())
    del manifest["files"][name]
    (bundle.path / "manifest.json").write_text(json.dumps(manifest))
    return bundle.path


def with_template(bundle: Bundle, template: str) -> Bundle:
    """A bundle with another chat template."""
    return with_file(bundle, "chat_template.jinja", template)


def with_file(bundle: Bundle, name: str, text: str) -> Bundle:
    """A bundle in which one file is another."""
    path = bundle.path / name
    path.write_text(text, encoding="utf-8")
    manifest = json.loads((bundle.path / "manifest.json").read_text())
    manifest["files"][path.name] = {"size": path.stat().st_size, "sha256": sha256(path)}
    (bundle.path / "manifest.json").write_text(json.dumps(manifest))
    return open_bundle(bundle.path)
