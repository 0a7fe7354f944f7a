"""Which other files an ONNX graph reads: the locations of its external data, found without the onnx package.

A .onnx file is a protocol buffer (onnx/onnx.proto). Only the messages that can hold tensors are walked, by the numbers
of their fields; everything else is passed over by its length.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from edge.errors import BundleError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_WIDTH = {_FIXED64: 8, _FIXED32: 4}
# Message → number of a field → the message in it.
_TENSORS: dict[str, dict[int, str]] = {
    "Model": {7: "Graph", 20: "Training", 25: "Function"},
    "Training": {1: "Graph", 2: "Graph"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Function": {7: "Node", 11: "Attribute"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "SparseTensor", 23: "SparseTensor"},
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
    "Tensor": {13: "Entry"},
}
_KEY, _VALUE = 1, 2  # of an Entry, a pair of texts


def external_locations(path: Path) -> set[str]:
    """The locations that the graph's tensors name, as they stand there. Raises BundleError for no ONNX file."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return {value.decode() for key, value in _entries(data) if key == b"location"}
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # an empty file, a length that leads out of its message, bytes that are no text
        raise BundleError(f"{path}: is no ONNX graph ({error})") from error


def _entries(data: mmap.mmap) -> Iterator[tuple[bytes, bytes]]:
    """The key and value of each external-data entry, wherever its tensor stands."""
    open_messages = [("Model", 0, len(data))]
    while open_messages:
        message, start, stop = open_messages.pop()
        if message == "Entry":
            texts = {number: data[first:last] for number, first, last in _fields(data, start, stop)}
            yield texts.get(_KEY, b""), texts.get(_VALUE, b"")
            continue
        inner = _TENSORS[message]
        for number, first, last in _fields(data, start, stop):
            if number in inner:
                open_messages.append((inner[number], first, last))


def _fields(data: mmap.mmap, position: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """(number, start, stop) of the fields of a message that have a length. Raises ValueError for what is none."""
    while position < stop:
        tag, position = _varint(data, position, stop)
        kind = tag & 7
        if kind == _VARINT:
            _, position = _varint(data, position, stop)
            continue
        if kind == _BYTES:
            length, position = _varint(data, position, stop)
            yield tag >> 3, position, min(position + length, stop)
        elif kind in _WIDTH:
            length = _WIDTH[kind]
        else:
            raise ValueError(f"a field of the wire type {kind}")
        position += length
        if position > stop:
            raise ValueError("a field ends behind its message")


def _varint(data: mmap.mmap, position: int, stop: int) -> tuple[int, int]:
    """A number of seven bits a byte, lowest first, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if position == stop:
            break
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise ValueError("a number without an end")
