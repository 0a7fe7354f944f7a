"""What the tests over the scripted runtime share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge.bundle import Bundle, open_bundle
from edge.pipeline import Pipeline
from edge.seal import seal
from edge.sums import sha256
from runtimes.scripted import ScriptedRuntime

OpenScripted = Callable[..., Pipeline]
FOX = "The quick brown fox"


def runtime(pipeline: Pipeline) -> ScriptedRuntime:
    assert isinstance(pipeline.runtime, ScriptedRuntime)
    return pipeline.runtime


def without(bundle: Bundle, name: str) -> Path:
    """The path of a bundle whose manifest no longer lists that file."""
    change_manifest(bundle.path, lambda manifest: manifest["files"].pop(name))
    return bundle.path


def change_manifest(folder: Path, how: Callable[[dict[str, Any]], object]) -> None:
    """Change a bundle's manifest and seal it again, as an exporter that wrote these values would have."""
    path = folder / "manifest.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    how(data)
    path.write_text(seal(data), encoding="utf-8")


def with_template(bundle: Bundle, template: str) -> Bundle:
    """A bundle with another chat template."""
    return with_file(bundle, "chat_template.jinja", template)


def with_file(bundle: Bundle, name: str, text: str) -> Bundle:
    """A bundle in which one file is another."""
    path = bundle.path / name
    path.write_text(text, encoding="utf-8")
    entry = {"size": path.stat().st_size, "sha256": sha256(path)}
    change_manifest(bundle.path, lambda manifest: manifest["files"].update({name: entry}))
    return open_bundle(bundle.path)
