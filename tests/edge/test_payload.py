"""The bit layout, read back one element at a time with plain integers, and made by hand."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.errors import FormatError
from edge.payload import SCHEMES, Scheme, dequantize, pack_nibbles, parse_scheme, unpack_nibbles

NAMES = [*(f"int4-g{group}-{kind}" for group in (32, 64, 128) for kind in ("sym", "zp", "affine")), "int8-g32-sym"]


def scheme(name: str) -> Scheme:
    found = parse_scheme(name)
    assert found is not None
    return found


def half(data: bytes, index: int) -> float:
    """Number `index` of a run of little-endian float16."""
    value: float = struct.unpack_from("<e", data, 2 * index)[0]
    return value


def element(name: str, files: dict[str, bytes], columns: int, row: int, column: int) -> float:
    """One weight by the documented rule, straight from the bytes of the parts: no array arithmetic."""
    bits, group, kind = int(name[3]), int(name.split("-")[1][1:]), name.split("-")[2]
    groups = (columns + group - 1) // group
    row_bytes = groups * group * bits // 8
    if bits == 8:
        code = files["codes"][row * row_bytes + column]
    else:
        byte = files["codes"][row * row_bytes + column // 2]
        code = byte >> 4 if column % 2 else byte & 15
    g = column // group
    scale = half(files["scales"], row * groups + g)
    if kind == "affine":
        return scale * code + half(files["offsets"], row * groups + g)
    if kind == "zp":
        byte = files["zeros"][row * ((groups + 1) // 2) + g // 2]
        return scale * (code - (byte >> 4 if g % 2 else byte & 15))
    return scale * (code - (8 if bits == 4 else 128))


def random_parts(name: str, rows: int, columns: int) -> dict[str, npt.NDArray[Any]]:
    rng = np.random.default_rng(len(name) * 1000 + columns)
    parts: dict[str, npt.NDArray[Any]] = {}
    for part, (dtype, shape) in scheme(name).parts(rows, columns).items():
        if dtype == "U8":
            parts[part] = rng.integers(0, 256, shape).astype(np.uint8)
        else:
            parts[part] = rng.normal(0, 0.1, shape).astype(np.float16)
    return parts


@pytest.mark.parametrize("columns", [576, 896, 100, 1, 33])
@pytest.mark.parametrize("name", NAMES)
def test_q1_layout_against_an_unpacker_of_single_elements(name: str, columns: int) -> None:
    """Widths that the group does not divide are padded: whole groups of codes, and each element at its place."""
    parts = random_parts(name, 3, columns)
    files = {part: values.tobytes() for part, values in parts.items()}
    found = dequantize(scheme(name), parts, columns)
    assert found.shape == (3, columns)
    assert found.dtype == np.float32
    expected = [[element(name, files, columns, row, column) for column in range(columns)] for row in range(3)]
    # A product and a sum of float32 against float64.
    np.testing.assert_allclose(found, expected, rtol=3e-7, atol=2e-7)


def test_hand_made_bytes() -> None:
    """A row of 32 columns: code 2i is the low nibble of byte i; scale 0.5 is 0x3800, offset -1 is 0xbc00."""
    codes = np.zeros((1, 16), np.uint8)
    codes[0, 0], codes[0, 1], codes[0, 15] = 0x21, 0xF8, 0xA0
    scales = np.frombuffer(bytes([0x00, 0x38]), "<f2").reshape(1, 1)
    sym = dequantize(scheme("int4-g32-sym"), {"codes": codes, "scales": scales}, 32)[0]
    assert sym[[0, 1, 2, 3, 30, 31]].tolist() == [-3.5, -3.0, 0.0, 3.5, -4.0, 1.0]
    zeros = np.array([[0xF3]], np.uint8)  # one group: the low nibble, 3; the high one is padding
    zp = dequantize(scheme("int4-g32-zp"), {"codes": codes, "scales": scales, "zeros": zeros}, 32)[0]
    assert zp[[0, 1, 2, 3]].tolist() == [-1.0, -0.5, 2.5, 6.0]
    offsets = np.frombuffer(bytes([0x00, 0xBC]), "<f2").reshape(1, 1)
    affine = dequantize(scheme("int4-g32-affine"), {"codes": codes, "scales": scales, "offsets": offsets}, 32)[0]
    assert affine[[0, 1, 2, 3]].tolist() == [-0.5, 0.0, 3.0, 6.5]
    wide = np.zeros((1, 32), np.uint8)
    wide[0, :3] = 0, 128, 255
    int8 = dequantize(scheme("int8-g32-sym"), {"codes": wide, "scales": scales}, 3)[0]
    assert int8.tolist() == [-64.0, 0.0, 63.5]


def test_zero_points_of_an_odd_number_of_groups_start_a_new_byte_each_row() -> None:
    codes = np.full((2, 48), 0x55, np.uint8)  # 96 columns, three groups
    scales = np.ones((2, 3), np.float16)
    zeros = np.array([[0x21, 0x03], [0x54, 0x06]], np.uint8)
    found = dequantize(scheme("int4-g32-zp"), {"codes": codes, "scales": scales, "zeros": zeros}, 96)
    assert found[:, ::32].tolist() == [[4.0, 3.0, 2.0], [1.0, 0.0, -1.0]]


@pytest.mark.parametrize(
    ("name", "columns", "size"),
    [
        # Written out: rows * (groups * (code bytes + 2 for a scale + 2 for an offset) + ceil(groups / 2) zero points).
        ("int4-g32-sym", 576, 7 * 18 * (16 + 2)),
        ("int4-g32-zp", 576, 7 * (18 * (16 + 2) + 9)),
        ("int4-g32-affine", 576, 7 * 18 * (16 + 4)),
        ("int4-g64-sym", 576, 7 * 9 * (32 + 2)),
        ("int4-g64-zp", 576, 7 * (9 * (32 + 2) + 5)),
        ("int4-g128-sym", 576, 7 * 5 * (64 + 2)),
        ("int4-g128-sym", 896, 7 * 7 * (64 + 2)),
        ("int4-g32-sym", 100, 7 * 4 * (16 + 2)),
        ("int4-g128-affine", 100, 7 * 1 * (64 + 4)),
        ("int8-g32-sym", 100, 7 * 4 * (32 + 2)),
    ],
)
def test_sizes(name: str, columns: int, size: int) -> None:
    found = scheme(name)
    assert found.size(7, columns) == size
    assert sum(values.nbytes for values in random_parts(name, 7, columns).values()) == size


def test_every_name_is_its_own_and_the_listed_ones() -> None:
    assert [scheme(name).name for name in NAMES] == NAMES
    assert parse_scheme("float16") is None
    assert parse_scheme("float32") is None
    assert set(SCHEMES) == {"int4-g{32,64,128}-{sym,zp,affine}", "int8-g32-sym", "float16", "float32"}


@pytest.mark.parametrize(
    "name",
    ["", "int4", "int4-g16-sym", "int4-g256-sym", "int8-g64-sym", "int8-g32-zp", "int4-g32-sym ", "INT4-g32-sym",
     "int4-g32-sym\n", "int4-g32-asym", "float64"],
)  # fmt: skip
def test_other_names_are_refused_with_what_is_known(name: str) -> None:
    with pytest.raises(FormatError, match="known are int4-g"):
        parse_scheme(name)


@given(st.lists(st.integers(0, 15), min_size=1, max_size=40))
def test_nibbles_round_trip_low_first(codes: list[int]) -> None:
    packed = pack_nibbles(np.array([codes], np.uint8))
    assert packed.shape == (1, (len(codes) + 1) // 2)
    assert [(packed[0, i // 2] >> (4 if i % 2 else 0)) & 15 for i in range(len(codes))] == codes
    assert unpack_nibbles(packed, len(codes))[0].tolist() == codes
    if len(codes) % 2:
        assert packed[0, -1] >> 4 == 0
