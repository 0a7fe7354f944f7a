"""Reading protocol buffers: the wire format, and a literal table of the messages of a Core ML model that are read here.

Facts are those of Model.proto, FeatureTypes.proto and MIL.proto, specification 9. A message becomes a dict by field
name. A field that the table does not have is an error: nothing in a package may be passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from edge.errors import FormatError

# message → field number → (name, type). Types: a message, or int, bool, text, bytes; in brackets a list; "floats" and
# the like are packed lists of numbers; "map" a table from texts to what is behind it. The functions of a
# program stay bytes until one is asked for.
MESSAGES: dict[str, dict[int, tuple[str, str]]] = {
    "Model": {1: ("version", "int"), 2: ("description", "Description"), 502: ("program", "Program")},
    "Description": {20: ("functions", "[Signature]"), 21: ("default", "text")},
    "Signature": {1: ("name", "text"), 2: ("inputs", "[Feature]"), 3: ("outputs", "[Feature]")},
    "Feature": {1: ("name", "text"), 3: ("type", "FeatureType")},
    "FeatureType": {5: ("array", "ArrayType")},
    "ArrayType": {1: ("shape", "ints"), 2: ("dtype", "int")},
    "Program": {1: ("version", "int"), 2: ("functions", "map bytes")},
    "Function": {1: ("inputs", "[NamedType]"), 2: ("opset", "text"), 3: ("blocks", "map Block")},
    "NamedType": {1: ("name", "text"), 2: ("type", "Type")},
    "Type": {1: ("tensor", "TensorType")},
    "TensorType": {1: ("dtype", "int"), 2: ("rank", "int"), 3: ("dimensions", "[Dimension]")},
    "Dimension": {1: ("constant", "Size")},
    "Size": {1: ("size", "int")},
    "Block": {2: ("outputs", "[text]"), 3: ("operations", "[Operation]")},
    "Operation": {
        1: ("type", "text"),
        2: ("inputs", "map Argument"),
        3: ("outputs", "[NamedType]"),
        5: ("attributes", "map Value"),
    },
    "Argument": {1: ("arguments", "[Binding]")},
    "Binding": {1: ("name", "text"), 2: ("value", "Value")},
    "Value": {2: ("type", "Type"), 3: ("immediate", "Immediate"), 5: ("blob", "BlobFile")},
    "BlobFile": {1: ("file", "text"), 2: ("offset", "int")},
    "Immediate": {1: ("tensor", "Tensor")},
    "Tensor": {
        1: ("floats", "Floats"),
        2: ("ints", "Ints"),
        3: ("bools", "Ints"),
        4: ("texts", "Texts"),
        7: ("bytes", "Bytes"),
    },
    "Floats": {1: ("values", "floats")},
    "Ints": {1: ("values", "ints")},
    "Texts": {1: ("values", "[text]")},
    "Bytes": {1: ("values", "bytes")},
}
_SHORT = 64  # bytes
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read(message: str, data: bytes) -> dict[str, Any]:
    """A message by its name in `MESSAGES`; absent fields are absent. Raises FormatError for what is not one."""
    fields, found = MESSAGES[message], dict[str, Any]()
    for number, kind, value in _entries(data):
        if number not in fields:
            raise FormatError(f"a Core ML model with field {number} of {message}, which is not known here")
        name, wanted = fields[number]
        if wanted in ("ints", "floats"):
            found.setdefault(name, []).extend(_packed(wanted, kind, value))
        elif wanted.startswith("["):
            found.setdefault(name, []).append(_single(wanted[1:-1], kind, value))
        elif wanted.startswith("map "):
            key, entry = _entry(wanted[4:], kind, value)
            if key in found.setdefault(name, {}):
                raise FormatError(f"a Core ML model with {key!r} twice in {name}")
            found[name][key] = entry
        else:
            found[name] = _single(wanted, kind, value)
    return found


def _single(wanted: str, kind: int, value: Any) -> Any:
    if wanted in ("int", "bool"):
        if kind != _VARINT:
            raise FormatError("a Core ML model with a number of the wrong wire type")
        return value
    if kind != _BYTES:
        raise FormatError(f"a Core ML model with a {wanted} of the wrong wire type")
    if wanted == "bytes":
        return value
    if wanted == "text":
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError("a Core ML model with a text that is no UTF-8") from error
    return _repeated(wanted, value) if len(value) <= _SHORT else read(wanted, value)


@lru_cache(maxsize=1 << 14)
def _repeated(message: str, data: bytes) -> dict[str, Any]:
    """A short message, of which a program has many that are equal: types above all. Shared: it must not be changed."""
    return read(message, data)


def _entry(message: str, kind: int, value: Any) -> tuple[str, Any]:
    """One entry of a map: its key, a text, and its value."""
    key: str = ""
    found: Any = b"" if message == "bytes" else {}
    if kind != _BYTES:
        raise FormatError("a Core ML model with a map of the wrong wire type")
    for number, inner, content in _entries(value):
        if number == 1:
            key = _single("text", inner, content)
        elif number == 2:
            found = _single(message, inner, content)
        else:
            raise FormatError(f"a Core ML model with field {number} in a map")
    return key, found


def _packed(wanted: str, kind: int, value: Any) -> list[Any]:
    """Numbers, packed or one alone. Integers are signed, of 64 bits."""
    if wanted == "floats":
        data = struct.pack("<I", value) if kind == _FIXED32 else value
        if kind not in (_FIXED32, _BYTES) or len(data) % 4:
            raise FormatError("a Core ML model with floats of the wrong wire type")
        return list(np.frombuffer(data, "<f4"))
    numbers = [value] if kind == _VARINT else list(_varints(value)) if kind == _BYTES else None
    if numbers is None:
        raise FormatError("a Core ML model with integers of the wrong wire type")
    return [number - (1 << 64) if number >> 63 else number for number in numbers]


def _entries(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """(field number, wire type, value) of each entry: a number, or the bytes of a text or message."""
    position, end = 0, len(data)
    while position < end:
        tag = data[position]
        position += 1
        if tag >= 0x80:
            tag, position = _varint(data, position - 1)
        kind = tag & 7
        value: Any
        if kind == _VARINT:
            value, position = _varint(data, position)
        elif kind == _BYTES:
            size, position = _varint(data, position)
            value, position = data[position : position + size], position + size
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
            value, position = int.from_bytes(data[position : position + size], "little"), position + size
        else:
            raise FormatError(f"a Core ML model with wire type {kind}: it is no protocol buffer")
        if position > end:
            raise FormatError("a Core ML model that ends within a field: it is cut off or damaged")
        yield tag >> 3, kind, value


def _varints(data: bytes) -> Iterator[int]:
    position = 0
    while position < len(data):
        value, position = _varint(data, position)
        yield value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    if position < len(data) and data[position] < 0x80:
        return data[position], position + 1
    value = shift = 0
    while shift < 70:
        if position >= len(data):
            raise FormatError("a Core ML model that ends within a number: it is cut off or damaged")
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value & (1 << 64) - 1, position
        shift += 7
    raise FormatError("a Core ML model with a number of more than ten bytes: it is damaged")
