"""Small packages made by coremltools alone: its builder, its exporter, its own writer of weights."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from runtimes.coreml_interpreter.model import Package

BuildFunction = Callable[[Any, dict[str, Any]], Any]


def save(folder: Path, inputs: dict[str, np.ndarray[Any, Any]], build: BuildFunction) -> Package:
    """A package with one function `main`: of inputs like these, and of one output."""
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    import coremltools
    from coremltools.converters.mil import Builder as mb  # noqa: N813
    from coremltools.converters.mil import mil
    from coremltools.converters.mil.backend.mil.load import load
    from coremltools.converters.mil.mil import types

    kinds = {"float32": types.fp32, "float16": types.fp16, "int32": types.int32}
    placeholders = {name: mb.placeholder(value.shape, kinds[value.dtype.name]) for name, value in inputs.items()}
    function = mil.Function(placeholders, opset_version=coremltools.target.iOS18)
    with function:
        function.set_outputs([build(mb, dict(function.inputs))])
    program = mil.Program()
    program.add_function("main", function)
    program.export_as_multifunction = True
    program.default_function_name = "main"
    path = folder / "small.mlpackage"
    inner = path / "Data" / "com.apple.CoreML"
    (inner / "weights").mkdir(parents=True)
    model = load(program, str(inner / "weights"), specification_version=9)
    (inner / "model.mlmodel").write_bytes(model.SerializeToString())
    if not (inner / "weights" / "weight.bin").exists():
        (inner / "weights" / "weight.bin").write_bytes(b"\0\0\0\0\2\0\0\0" + bytes(56))
    items = {"a": {"name": "model.mlmodel", "path": "com.apple.CoreML/model.mlmodel"}}
    items["b"] = {"name": "weights", "path": "com.apple.CoreML/weights"}
    manifest = {"itemInfoEntries": items, "rootModelIdentifier": "a"}
    (path / "Manifest.json").write_text(json.dumps(manifest))
    return Package(path)
