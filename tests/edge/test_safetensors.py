"""The container against the `safetensors` package, both ways, and headers that lie."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.errors import FormatError
from edge.safetensors import DTYPE_BYTES, plan_header, read_header


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def tensor(start: int, stop: int, shape: list[int], dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


@given(
    st.lists(
        st.tuples(st.sampled_from(["U8", "F16", "F32"]), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
        min_size=1, max_size=9,
    )
)  # fmt: skip
@settings(deadline=None, max_examples=50)
def test_a_planned_file_is_read_by_the_package(tensors: list[tuple[str, list[int]]]) -> None:
    entries = [(f"layers.{i}.é", dtype, tuple(shape)) for i, (dtype, shape) in enumerate(tensors)]
    header, infos = plan_header(entries)
    data = bytearray(header.ljust(max(info.stop for info in infos.values()), b"\0"))
    values: dict[str, Any] = {}
    for number, (name, dtype, shape) in enumerate(entries, 1):
        kind = {"U8": np.uint8, "F16": np.float16, "F32": np.float32}[dtype]
        values[name] = (np.arange(np.prod(shape)) % 200 + number).astype(kind).reshape(shape)
        assert infos[name].start % 64 == 0
        data[infos[name].start : infos[name].stop] = values[name].tobytes()
    found = safetensors.numpy.load(bytes(data))
    padding = {name for name in found if name.startswith("__pad.")}
    assert found.keys() - padding == values.keys()
    assert all(not found[name].any() for name in padding)
    for name, expected in values.items():
        np.testing.assert_array_equal(found[name], expected)
        assert found[name].dtype == expected.dtype


def test_the_packages_file_is_read_by_us(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = {
        "a": rng.normal(size=(3, 5)).astype(np.float32), "b": rng.normal(size=7).astype(np.float16),
        "c": np.zeros((0, 4), np.uint8), "d": rng.integers(0, 255, (2, 2, 2)).astype(np.uint8),
    }  # fmt: skip
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file(values, path, metadata={"format": "pt"})
    found = read_header(path)
    assert found.keys() == values.keys()
    raw = path.read_bytes()
    for name, expected in values.items():
        assert (found[name].shape, DTYPE_BYTES[found[name].dtype]) == (expected.shape, expected.itemsize)
        assert raw[found[name].start : found[name].stop] == expected.tobytes()


def test_an_empty_tensor_may_stand_where_another_starts(tmp_path: Path) -> None:
    """In whichever order the header names them: the package reads it."""
    path = write(tmp_path / "x", {"full": tensor(0, 4, [4]), "empty": tensor(0, 0, [0])}, b"abcd")
    assert safetensors.numpy.load_file(path)["full"].tobytes() == b"abcd"
    assert list(read_header(path)) == ["empty", "full"]


def test_file_order_and_metadata(tmp_path: Path) -> None:
    header = {"second": tensor(4, 6, [2]), "__metadata__": {"a": "b"}, "first": tensor(0, 4, [1], "F32")}
    path = write(tmp_path / "x", json.dumps(header).encode() + b"   ", b"\0" * 6)
    assert [(name, info.shape) for name, info in read_header(path).items()] == [("first", (1,)), ("second", (2,))]


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        (b"{nonsense", b"", "its header is no JSON"),
        (b"\xff\xfe{}", b"", "its header is no JSON"),
        (b"[" * 100_000, b"", "its header is no JSON"),
        ([1, 2], b"", "no JSON object"),
        ({"a": 5}, b"", "'a' is described wrongly"),
        ({"a": {"dtype": "U8", "shape": [1]}}, b"\0", "'a' is described wrongly: 'data_offsets'"),
        ({"a": tensor(0, 1, [1], "I4")}, b"\0", "wrongly: numbers of the type 'I4' are not known"),
        ({"a": {**tensor(0, 1, [1]), "dtype": ["U8"]}}, b"\0", "described wrongly"),
        ({"a": {**tensor(0, 1, [1]), "data_offsets": [0]}}, b"\0", "described wrongly"),
        ({"a": tensor(0, 2, [1])}, b"\0\0", "2 bytes for U8"),
        ({"a": tensor(0, 1, [-1])}, b"\0", "small non-negative integers"),
        ({"a": tensor(0, 1, [True])}, b"\0", "small non-negative integers"),  # type: ignore[list-item]
        ({"a": tensor(0, 1, [1.0])}, b"\0", "small non-negative integers"),  # type: ignore[list-item]
        ({"a": tensor(0, 1, [2**62, 4])}, b"\0", "small non-negative integers"),
        ({"a": tensor(0, 2**61, [2**61])}, b"\0", "truncated: tensor 'a' ends at byte"),
        ({"a": tensor(0, 4, [4])}, b"\0\0\0", "truncated: tensor 'a' ends at byte"),
        ({"a": tensor(0, 4, [4]), "b": tensor(2, 4, [2])}, b"\0" * 4, "tensor 'b' starts at byte"),
        ({"a": tensor(1, 4, [3])}, b"\0" * 4, "tensor 'a' starts at byte"),
        ({"a": tensor(0, 1, [1]), "b": tensor(2, 3, [1])}, b"\0" * 3, "tensor 'b' starts at byte"),
        ({"a": tensor(0, 2, [2])}, b"\0" * 5, "3 bytes follow the last tensor"),
    ],
)
def test_hostile_headers(header: Any, data: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=words):
        read_header(write(tmp_path / "x.safetensors", header, data))


@pytest.mark.parametrize("content", [b"", b"\x05", b"\xff" * 8, struct.pack("<Q", 2**63), struct.pack("<Q", 9) + b"{}"])
def test_no_safetensors_at_all(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(FormatError, match="not a safetensors file: a header of"):
        read_header(tmp_path / "x")
    with pytest.raises(FormatError, match="cannot be read"):
        read_header(tmp_path / "absent")
    with pytest.raises(FormatError, match="cannot be read"):
        read_header(tmp_path)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file({"a": np.arange(6, dtype=np.float32)}, path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError):
            read_header(path)
