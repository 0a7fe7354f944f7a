"""A saved package as records: functions with their inputs, operations and outputs. Nothing is computed here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge import texts
from edge.errors import BundleError, FormatError, found_in
from runtimes.coreml_interpreter import wire
from runtimes.coreml_interpreter.blobs import Blobs

_DTYPES = {
    1: "bool", 2: "string", 10: "float16", 11: "float32", 21: "int8", 23: "int32", 25: "int4", 31: "uint8", 35: "uint4",
}  # fmt: skip
_ARRAYS = {65552: "float16", 65568: "float32", 131104: "int32"}
_RANK, _NUMBERS = 5, 1 << 40
_LIMIT = 1 << 30  # bytes of a program


@dataclass(frozen=True, slots=True)
class Tensor:
    """A type: of numbers, and their shape."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that the program holds: in itself, or in a blob at an offset."""

    type: Tensor
    value: npt.NDArray[Any] | str | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """An op of MIL: its inputs are names of values or constants, by parameter; a parameter may take several."""

    kind: str
    name: str
    inputs: Mapping[str, tuple[str | Constant, ...]]
    output: str
    type: Tensor
    value: Constant | None = None  # of a `const`


@dataclass(frozen=True, slots=True)
class Function:
    """`signature` is what the model's description says of inputs and outputs, by name."""

    name: str
    opset: str
    inputs: Mapping[str, Tensor]
    operations: tuple[Operation, ...]
    outputs: tuple[str, ...]
    signature: tuple[Mapping[str, Tensor], Mapping[str, Tensor]]


class Package:
    """A package as it lies on disk. A function is read when it is first asked for."""

    def __init__(self, path: Path) -> None:
        """Raises BundleError for one that is not whole, or holds what is not known here."""
        self.path = path
        self._root, blobs = _items(path)
        with found_in(BundleError, self._root):
            model = wire.read("Model", _bytes(self._root))
            described = model.get("description", {}).get("functions", [])
            self._described = {item.get("name", ""): item for item in described}
            self._programs: dict[str, bytes] = model.get("program", {}).get("functions", {})
            if self._programs.keys() != self._described.keys() or not self._programs:
                raise FormatError(
                    f"its program has the functions {sorted(self._programs)}, its description {sorted(self._described)}"
                )
        self.version: int = model.get("version", 0)
        self.blobs = Blobs(blobs)
        self._functions: dict[str, Function] = {}

    @property
    def names(self) -> list[str]:
        """Of the functions, in alphabetical order: in the file they have none."""
        return sorted(self._programs)

    def function(self, name: str) -> Function:
        """Raises BundleError for one that it lacks, or that holds what is not known here."""
        if name not in self._programs:
            raise BundleError(f"{self.path}: has no function {name}; it has {', '.join(self.names)}")
        if name not in self._functions:
            with found_in(BundleError, self._root):
                data = wire.read("Function", self._programs[name])
                self._functions[name] = _function(name, data, self._described[name])
        return self._functions[name]


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > _LIMIT:
            raise FormatError("larger than a program can be")
        return path.read_bytes()
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror}") from error


def _items(path: Path) -> tuple[Path, Path]:
    """The files of the program and of the weights, as the package's manifest lists them."""
    try:
        manifest = texts.read_json(path / "Manifest.json")
        entries = manifest["itemInfoEntries"]
        paths = {entry["name"]: str(entry["path"]) for entry in entries.values()}
        root = str(entries[manifest["rootModelIdentifier"]]["path"])
        weights = paths["weights"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{path}: is no Core ML package: its Manifest.json is missing or lacks its items") from error
    if ".." in (*Path(root).parts, *Path(weights).parts) or Path(root).is_absolute() or Path(weights).is_absolute():
        raise BundleError(f"{path}: its manifest names files outside of it")
    return path / "Data" / root, path / "Data" / weights / "weight.bin"


def _function(name: str, data: Mapping[str, Any], described: Mapping[str, Any]) -> Function:
    opset, blocks = data.get("opset", ""), data.get("blocks", {})
    if set(blocks) != {opset}:
        raise FormatError(f"function {name} of opset {opset!r} has blocks for {sorted(blocks)}")
    block = blocks[opset]
    signature = tuple(
        {item.get("name", ""): _feature(item) for item in described.get(side, [])} for side in ("inputs", "outputs")
    )
    return Function(
        name,
        opset,
        {item.get("name", ""): _tensor(item.get("type", {})) for item in data.get("inputs", [])},
        tuple(_operation(item) for item in block.get("operations", [])),
        tuple(block.get("outputs", [])),
        (signature[0], signature[1]),
    )


def _operation(data: Mapping[str, Any]) -> Operation:
    kind, attributes, outputs = data.get("type", ""), data.get("attributes", {}), data.get("outputs", [])
    if len(outputs) != 1 or not set(attributes) <= {"name", "val"}:
        raise FormatError(f"an op {kind!r} with {len(outputs)} outputs and attributes {sorted(attributes)}")
    inputs = {
        parameter: tuple(_bound(binding) for binding in argument.get("arguments", []))
        for parameter, argument in data.get("inputs", {}).items()
    }
    named = _constant(attributes["name"]).value if "name" in attributes else ""
    value = _constant(attributes["val"]) if "val" in attributes else None
    output = outputs[0]
    return Operation(kind, str(named), inputs, output.get("name", ""), _tensor(output.get("type", {})), value)


def _bound(binding: Mapping[str, Any]) -> str | Constant:
    return _constant(binding["value"]) if "value" in binding else str(binding.get("name", ""))


def _constant(data: Mapping[str, Any]) -> Constant:
    kind = _tensor(data.get("type", {}))
    if ("blob" in data) == ("immediate" in data):
        raise FormatError("a constant that lies both in the program and in a file, or in neither")
    if "blob" in data:
        file = data["blob"].get("file", "")
        if file != "@model_path/weights/weight.bin":
            raise FormatError(f"a constant in the file {file!r}")
        return Constant(kind, offset=data["blob"].get("offset", 0))
    return Constant(kind, _immediate(kind, data["immediate"].get("tensor", {})))


def _immediate(kind: Tensor, tensor: Mapping[str, Any]) -> npt.NDArray[Any] | str:
    """The value of a constant that stands in the program. A scalar that is 0 has no numbers there."""
    if kind.dtype == "string":
        texts = tensor.get("texts", {}).get("values", [])
        if len(texts) != 1:
            raise FormatError(f"a text constant of {len(texts)} texts")
        return str(texts[0])
    stored = {"bool": "bools", "float32": "floats", "int32": "ints", "float16": "bytes"}.get(kind.dtype)
    if stored is None or not set(tensor) <= {stored}:
        raise FormatError(f"a constant of {kind} stored as {sorted(tensor)}")
    if stored == "bytes":
        data = tensor.get("bytes", {}).get("values", b"")
        found = np.frombuffer(data[: len(data) // 2 * 2], "<f2").astype(np.float32)
    else:
        found = np.asarray(tensor.get(stored, {}).get("values", []), kind.dtype)
    if len(found) != math.prod(kind.shape):
        raise FormatError(f"a constant of {kind} with {len(found)} numbers")
    return found.reshape(kind.shape)


def _tensor(data: Mapping[str, Any]) -> Tensor:
    tensor = data.get("tensor")
    if tensor is None or tensor.get("dtype", 0) not in _DTYPES:
        raise FormatError(f"a value of a type that is not known here: {data}")
    shape = tuple(dimension.get("constant", {}).get("size", -1) for dimension in tensor.get("dimensions", []))
    if len(shape) != tensor.get("rank", 0) or len(shape) > _RANK or min(shape, default=1) < 0:
        raise FormatError(f"a value of the shape {list(shape)}")
    if math.prod(shape) > _NUMBERS:
        raise FormatError(f"a value of the shape {list(shape)}, which no memory holds")
    return Tensor(_DTYPES[tensor["dtype"]], shape)


def _feature(data: Mapping[str, Any]) -> Tensor:
    array = data.get("type", {}).get("array", {})
    if array.get("dtype") not in _ARRAYS:
        raise FormatError(f"{data.get('name')} is described by a type that is not known here: {data.get('type')}")
    return Tensor(_ARRAYS[array["dtype"]], tuple(array.get("shape", [])))
