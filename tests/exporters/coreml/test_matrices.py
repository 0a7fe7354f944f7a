"""Matrices as MIL has them, against the payload's own meaning; weight.bin, against the bytes of coremltools itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge import payload
from edge.ops import Weight
from edge.payload import Scheme, parse_scheme
from edge.safetensors import PADDING, plan_header
from edge.weights import Weights
from exporters.emit.coreml.blobs import Blob, BlobWriter
from exporters.emit.coreml.matrices import Coded, Matrices
from tests.coreml_host import COREML

ROWS, COLUMNS = 7, 96
Array = np.ndarray[Any, Any]


def random_parts(scheme: Scheme, scales: Array) -> dict[str, Array]:
    random = np.random.default_rng(0)
    parts = {
        name: random.integers(0, 256, shape).astype(np.uint8)
        for name, (dtype, shape) in scheme.parts(ROWS, COLUMNS).items()
        if dtype == "U8"
    }
    parts["scales"] = scales.astype(np.float16)
    if scheme.kind == "affine":
        parts["offsets"] = random.normal(0, 0.5, scales.shape).astype(np.float16)
    return parts


def matrices(folder: Path, name: str, parts: Mapping[str, Array]) -> Weights:
    """A payload with one matrix `w`."""
    types = {"uint8": "U8", "float16": "F16"}
    header, infos = plan_header((f"w.{part}", types[array.dtype.name], array.shape) for part, array in parts.items())
    path = folder / "weights.safetensors"
    with open(path, "wb") as file:
        file.write(header)
        for tensor, info in infos.items():
            padding = tensor.startswith(PADDING)
            file.write(bytes(info.stop - info.start) if padding else parts[tensor.removeprefix("w.")].tobytes())
    return Weights(path, [Weight("w", (ROWS, COLUMNS), "up")], {"w": name})


def numbers(blob: Blob) -> Array:
    """A blob's numbers, unpacked one by one."""
    data = b"".join(blob.pieces())
    if blob.dtype.startswith("float"):
        return np.frombuffer(data, blob.dtype).reshape(blob.shape).astype(np.float64)
    if blob.dtype.endswith("8"):
        return np.frombuffer(data, blob.dtype).reshape(blob.shape).astype(np.float64)
    found = []
    for index in range(int(np.prod(blob.shape))):
        nibble = data[index // 2] >> 4 * (index % 2) & 15
        found.append(nibble - 16 if blob.dtype == "int4" and nibble > 7 else nibble)
    return np.array(found, np.float64).reshape(blob.shape)


def value(coded: Coded) -> Array:
    data, scale = numbers(coded.data), numbers(coded.scale)
    assert (scale > 0).all()
    offset = np.zeros(scale.shape) if coded.offset is None else numbers(coded.offset)
    group = data.shape[1] // scale.shape[1]
    return np.asarray((data - np.repeat(offset, group, 1)) * np.repeat(scale, group, 1))


@pytest.mark.parametrize("name", ["int4-g32-sym", "int8-g32-sym", "int4-g32-zp", "int4-g64-zp"])
@pytest.mark.parametrize("signs", ["positive", "mixed", "with zeros"])
def test_codes_scales_and_offsets_are_exact(name: str, signs: str, tmp_path: Path) -> None:
    """Odd numbers of groups: their offsets are packed across rows. A group of scale 0 is 0 whatever its codes."""
    scheme = parse_scheme(name)
    assert scheme is not None
    shape = (ROWS, scheme.groups(COLUMNS))
    scales = np.abs(np.random.default_rng(1).normal(0, 0.1, shape)) + 0.01
    scales[1::2] *= -1 if signs == "mixed" else 1
    scales[2, 0] *= 0 if signs == "with zeros" else 1
    parts = random_parts(scheme, scales)
    coded = Matrices(matrices(tmp_path, name, parts)).describe("w", (ROWS, COLUMNS), wide=False)
    assert isinstance(coded, Coded)
    expected = payload.dequantize(scheme, parts, COLUMNS)
    assert np.array_equal(value(coded)[:, :COLUMNS], expected.astype(np.float64))
    assert (coded.offset is None) == (scheme.kind == "sym" and signs != "mixed")


def test_affine_groups_err_by_no_more_than_is_stated(tmp_path: Path) -> None:
    """Scales that are negative, zero, and so small that the offset in units of them is beyond float16."""
    scheme = parse_scheme("int4-g32-affine")
    assert scheme is not None
    scales = np.random.default_rng(1).normal(0, 0.05, (ROWS, 3))
    scales[0, 0], scales[1, 1], scales[2, 2] = 0, 6e-8, -6e-8
    parts = random_parts(scheme, scales)
    parts["offsets"][3, 0] = 0
    coded = Matrices(matrices(tmp_path, "int4-g32-affine", parts)).describe("w", (ROWS, COLUMNS), wide=True)
    assert isinstance(coded, Coded)
    assert coded.scale.dtype == "float32"
    sizes, offsets = (np.abs(parts[part].astype(np.float64)) for part in ("scales", "offsets"))
    allowed = np.repeat((offsets + 15 * sizes) / 2048, 32, 1)
    wrong = np.abs(value(coded) - payload.dequantize(scheme, parts, COLUMNS))
    assert (wrong <= allowed + 1e-12).all()
    assert wrong.max() > 0
    assert np.array_equal(value(coded)[0, :32], np.full(32, float(parts["offsets"][0, 0])))


@COREML
def test_the_bytes_of_weight_bin_are_those_of_coremltools_own_writer(tmp_path: Path) -> None:
    storage = pytest.importorskip("coremltools.libmilstoragepython")
    from coremltools.converters.mil.mil import types

    random = np.random.default_rng(2)
    halves, floats = random.normal(size=11).astype(np.float16), random.normal(size=(3, 5)).astype(np.float32)
    bytes8, signed = random.integers(0, 256, 70).astype(np.uint8), random.integers(-128, 128, 3).astype(np.int8)
    nibbles = random.integers(0, 16, 15).astype(np.uint8)
    theirs = storage._BlobStorageWriter(str(tmp_path / "theirs"))
    places = [
        theirs.write_fp16_data(halves.view(np.uint16)),
        theirs.write_float_data(floats.reshape(-1)),
        theirs.write_uint8_data(bytes8),
        theirs.write_int8_data(signed),
        theirs.write_uint4_data(nibbles.astype(types.nptype_from_builtin(types.uint4))),
    ]
    del theirs  # closes its file
    packed = payload.pack_nibbles(nibbles.reshape(1, -1))
    blobs = {
        "halves": Blob("float16", (11,), lambda: iter([halves.tobytes()])),
        "floats": Blob("float32", (3, 5), lambda: iter([floats[:1].tobytes(), floats[1:].tobytes()])),
        "bytes": Blob("uint8", (70,), lambda: iter([bytes8.tobytes()])),
        "signed": Blob("int8", (3,), lambda: iter([signed.tobytes()])),
        "nibbles": Blob("uint4", (15,), lambda: iter([packed.tobytes()])),
    }
    with open(tmp_path / "ours", "wb") as file, BlobWriter(file) as writer:
        assert [writer.add(name, blob) for name, blob in blobs.items()] == places
        assert writer.add("halves", blobs["halves"]) == places[0]  # once
    ours, expected = ((tmp_path / name).read_bytes() for name in ("ours", "theirs"))
    assert ours == expected[: len(ours)]
    assert not any(expected[len(ours) :])
