"""Codes on the device and the kernels that multiply with them, against numbers that numpy dequantizes."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from edge import payload
from edge.payload import parse_scheme

if not find_spec("torch"):
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

from runtimes.torch import kernels
from runtimes.torch.codes import Codes, Workspace, blocks
from runtimes.torch.kernels import Kernel
from runtimes.torch.products import Dequantized, dense, times

CPU = torch.device("cpu")
SCHEMES = ("int4-g32-sym", "int4-g64-zp", "int4-g128-affine", "int8-g32-sym")
SHAPES = ((300, 100), (64, 576), (1, 40))


def made(name: str, rows: int, columns: int) -> tuple[Codes, np.ndarray[Any, Any]]:
    """A matrix in a scheme on the device, and its numbers as `edge.payload` has them."""
    scheme = parse_scheme(name)
    assert scheme is not None
    random, groups = np.random.default_rng(rows), scheme.groups(columns)
    codes = random.integers(0, 1 << scheme.bits, (rows, groups * scheme.group)).astype(np.uint8)
    scales = (random.standard_normal((rows, groups)) * 0.1).astype(np.float16)
    parts = {"codes": payload.pack_nibbles(codes) if scheme.bits == 4 else codes, "scales": scales}
    shifts = None
    if scheme.kind == "zp":
        shifts = random.integers(0, 16, (rows, groups)).astype(np.uint8)
        parts["zeros"] = payload.pack_nibbles(shifts)
    elif scheme.kind == "affine":
        shifts = parts["offsets"] = random.standard_normal((rows, groups)).astype(np.float16)
    on_device = Codes(
        scheme, columns, torch.from_numpy(parts["codes"]), torch.from_numpy(scales),
        None if shifts is None else torch.from_numpy(shifts),
    )  # fmt: skip
    return on_device, payload.dequantize(scheme, parts, columns)


def packed(kernel: Kernel, codes: Codes, dtype: torch.dtype, work: Workspace) -> kernels.Int4:
    parts = blocks(codes, work, kernel.multiple)
    return kernels.pack(kernel, codes.scheme, (codes.rows, codes.columns), parts, dtype, work)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_codes_are_the_numbers_of_the_payload(name: str, shape: tuple[int, int]) -> None:
    """Bit for bit, in blocks of rows and for rows that are picked, in a workspace that is smaller than the matrix."""
    codes, expected = made(name, *shape)
    work = Workspace(CPU, 7 * 640)
    found = np.concatenate([rows.numbers(work).numpy().copy() for rows in blocks(codes, work)])
    assert np.array_equal(found, expected)
    index = torch.tensor([shape[0] - 1, 0, 0])
    assert np.array_equal(codes.take(index).numbers(work).numpy(), expected[index.numpy()])
    assert work.numbers == 7 * 640


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_cpus_kernel_is_within_its_tolerance(name: str, shape: tuple[int, int]) -> None:
    """Packed 64 rows at a time, for matrices that its tiles do not divide, with one and with several rows of input."""
    codes, expected = made(name, *shape)
    kernel = kernels.find("cpu", torch.bfloat16)
    assert kernel is not None
    product = packed(kernel, codes, torch.bfloat16, Workspace(CPU, 64 * 640))
    x = np.random.default_rng(1).standard_normal((5, shape[1])).astype(np.float32)
    for rows in (1, 5):
        found = product(torch.from_numpy(x[:rows])).numpy()
        wanted = x[:rows] @ expected.T
        assert np.linalg.norm(found - wanted) < kernels.TOLERANCE * np.linalg.norm(wanted)


def test_no_kernel_is_known_for_what_none_computes_fast() -> None:
    assert kernels.find("cpu", torch.float32) is None
    assert kernels.find("cuda", torch.float16) is None
    found = kernels.find("mps", torch.float16)
    assert found is not None
    assert found.name == "int4 (mps)"


def tiles(codes: np.ndarray[Any, Any], inner: int) -> np.ndarray[Any, Any]:
    """CUDA's layout, written from the description of its tensor core's tiles with plain loops."""
    rows, columns = codes.shape
    found = np.zeros((rows // 8, columns // (16 * inner), 32, inner // 2), np.uint32)
    for row in range(rows):
        for column in range(columns):
            byte, odd = divmod(column, 2)
            outer, byte = divmod(byte, 8 * inner)
            pair, byte = divmod(byte, 16)
            nibble, lane = divmod(byte, 4)
            place = row // 8, outer, 4 * (row % 8) + lane, pair
            found[place] |= np.uint32(int(codes[row, column]) << (4 * (nibble + 4 * odd)))
    return found.view(np.int32)


@pytest.mark.parametrize(("columns", "inner"), [(64, 4), (96, 2), (128, 8)])
def test_codes_come_back_from_the_layout_of_cudas_tiles(columns: int, inner: int) -> None:
    codes = np.random.default_rng(0).integers(0, 16, (16, columns)).astype(np.uint8)
    laid = torch.from_numpy(tiles(codes, inner))
    assert np.array_equal(kernels.unpack_tiles(laid).numpy(), codes)


def test_codes_come_back_from_the_layout_of_metal() -> None:
    codes = np.random.default_rng(0).integers(0, 16, (16, 64)).astype(np.uint8)
    laid = torch.from_numpy(payload.pack_nibbles(codes)).view(torch.int32).view(2, 2, 32, 1)
    assert np.array_equal(kernels.unpack_bytes(laid).numpy(), codes)


@pytest.mark.parametrize("name", SCHEMES)
def test_many_rows_take_the_codes_out_of_a_layout(name: str) -> None:
    """The way of a prompt on a GPU: here with Metal's layout, which is the payload's bytes."""
    codes, expected = made(name, 300, 100)
    fake = Kernel(
        "fake", ("cpu",), (torch.float32,), 8, 2,
        lambda codes: (codes[:, ::2] | codes[:, 1::2] << 4).view(torch.int32).view(len(codes) // 8, -1, 32, 1),
        kernels.unpack_bytes, kernels.KERNELS[0].multiply,
    )  # fmt: skip
    product = packed(fake, codes, torch.float32, Workspace(CPU, 64 * 256))
    x = np.random.default_rng(1).standard_normal((3, 100)).astype(np.float32)
    wanted = x @ expected.T
    assert np.abs(product(torch.from_numpy(x)).numpy() - wanted).max() < 1e-5 * wanted.std()


def test_a_float16_product_overflows_where_its_result_does_and_nowhere_else() -> None:
    """Inputs of 1e5 (known fault O3) are no float16; what they make with small weights is an ordinary number."""
    x = torch.tensor([[1e5, -3.0], [2e-7, 1e-7]])
    weights = torch.tensor([[1e-3, 0.5], [2.0, 2.0]])
    found = times(x, weights.half())
    assert np.allclose(found, x @ weights.T, rtol=2e-3)


def test_a_dequantized_product_and_a_dense_one_are_the_numbers_products() -> None:
    codes, expected = made("int4-g64-zp", 300, 100)
    work = Workspace(CPU, 10 * 128)
    x = np.random.default_rng(1).standard_normal((3, 100)).astype(np.float32)
    wanted = x @ expected.T
    assert (
        np.abs(Dequantized(codes, work, torch.float32)(torch.from_numpy(x)).numpy() - wanted).max()
        < 1e-5 * wanted.std()
    )
    half = dense((300, 100), blocks(codes, work), work, torch.float16)
    assert half.nbytes == 300 * 100 * 2
    assert np.abs(half(torch.from_numpy(x)).numpy() - wanted).max() < 2e-2 * wanted.std()


def test_a_kernel_that_is_wrong_is_found_out() -> None:
    codes, _ = made("int4-g32-sym", 64, 64)
    right = kernels.KERNELS[0]
    swapped = replace(right, pack=lambda codes: right.pack(codes.flip(1)))
    work = Workspace(CPU, 1 << 16)
    assert kernels.error(packed(right, codes, torch.bfloat16, work), [codes]) < kernels.TOLERANCE
    assert kernels.error(packed(swapped, codes, torch.bfloat16, work), [codes]) > 0.5
