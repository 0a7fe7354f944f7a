"""Writing a package: NAME.mlpackage with its manifest, the program's protocol buffer, and weight.bin beside it.

The same program gives the same bytes: identifiers come from names, maps are written in order, and there is no date.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edge.coreml_interface import Function, Value
from exporters.emit.coreml.blobs import Blob, BlobWriter
from exporters.emit.coreml.program import Program
from exporters.emit.coreml.toolkit import Toolkit

SPECIFICATION = 9  # iOS 18, macOS 15
OPSET = "CoreML8"
_AUTHOR = "com.apple.CoreML"
_BLOBS = "weights/weight.bin"
_ARRAYS = {"float16": 65552, "float32": 65568, "int32": 131104}  # FeatureTypes.proto, ArrayDataType


class PackageWriter:
    """Writes functions of one program into a folder, each constant when it is first met."""

    def __init__(self, program: Program, folder: Path) -> None:
        self._toolkit = program.toolkit
        self._program = program
        self._folder = folder

    def write(self, functions: Sequence[Function]) -> None:
        """Build and write them; the first is the default one. Raises OSError."""
        listed = [(function, self._program.build(function)) for function in functions]
        inner = self._folder / "Data" / _AUTHOR
        (inner / "weights").mkdir(parents=True)
        model = self._toolkit.proto.Model_pb2.Model(specificationVersion=SPECIFICATION)
        model.description.defaultFunctionName = listed[0][0].name
        model.mlProgram.version = 1
        program = self._toolkit.mil.Program()
        for function, built in listed:
            program.add_function(function.name, built)
        program.default_function_name = listed[0][0].name
        with open(inner / _BLOBS, "wb") as file, BlobWriter(file) as writer:
            translator = _translator(self._toolkit, program, writer, self._program.blobs)
            for function, built in listed:
                model.mlProgram.functions[function.name].CopyFrom(translator.convert_function(built, OPSET))
                inputs, outputs = self._program.sides(self._program.bundle.spec, function)
                described = model.description.functions.add(name=function.name)
                _describe(described.input, inputs)
                _describe(described.output, outputs)
        (inner / "model.mlmodel").write_bytes(model.SerializeToString(deterministic=True))
        (self._folder / "Manifest.json").write_text(_manifest(), encoding="utf-8", newline="\n")


def _translator(toolkit: Toolkit, program: Any, writer: BlobWriter, blobs: Mapping[str, Blob]) -> Any:
    """coremltools' translator of functions, with large constants written by us."""
    messages = toolkit.proto.MIL_pb2

    class Translator(toolkit.exporter):  # type: ignore[misc, name-defined]
        def get_milproto_value(self, var: Any) -> Any:
            blob = blobs.get(var.op.weight_id or "")
            if blob is None:
                return _immediate(var)
            kind = self.types_to_proto(var.sym_type)
            place = messages.Value.BlobFileValue(
                fileName=f"@model_path/{_BLOBS}", offset=writer.add(var.op.weight_id, blob)
            )
            return messages.Value(type=kind, blobFileValue=place)

    return Translator(program, "", SPECIFICATION)


def _immediate(var: Any) -> Any:
    from coremltools.converters.mil.backend.mil.helper import create_immediate_value

    return create_immediate_value(var)


def _describe(features: Any, values: Mapping[str, Value]) -> None:
    for name, value in values.items():
        feature = features.add(name=name)
        feature.type.multiArrayType.dataType = _ARRAYS[value.dtype]
        feature.type.multiArrayType.shape.extend(value.shape)


def _manifest() -> str:
    """The package's own list of its items; their identifiers mean nothing but must be unique."""
    items = {
        "model.mlmodel": ("CoreML Model Specification", f"{_AUTHOR}/model.mlmodel"),
        "weights": ("CoreML Model Weights", f"{_AUTHOR}/weights"),
    }
    names = {name: str(uuid.uuid5(uuid.NAMESPACE_URL, f"dsedge:{name}")).upper() for name in items}
    entries = {
        names[name]: {"author": _AUTHOR, "description": description, "name": name, "path": path}
        for name, (description, path) in items.items()
    }
    data = {"fileFormatVersion": "1.0.0", "itemInfoEntries": entries, "rootModelIdentifier": names["model.mlmodel"]}
    return json.dumps(data, indent=4, sort_keys=True) + "\n"
