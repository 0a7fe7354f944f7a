"""What the tests over the scripted runtime share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from edge.bundle import Bundle
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
