"""What is learned: it begins as the payload that it is made of, moves as its formulas say, and stays on the grid."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edge import payload
from exporters.distill.adam import Moments
from exporters.distill.learned import SCALES, Matrix, Vector
from exporters.quant import rtn

SCHEMES = ["int4-g32-sym", "int4-g32-zp", "int4-g32-affine", "int4-g64-sym"]


def weight(rows: int = 6, columns: int = 80) -> np.ndarray:
    found = np.random.default_rng(3).normal(0.01, 0.1, (rows, columns)).astype(np.float32)
    found[1, :64] = 0  # groups of zeros
    return found


def made(name: str) -> tuple[payload.Scheme, dict[str, np.ndarray], Matrix, np.ndarray]:
    scheme = payload.parse_scheme(name)
    assert scheme is not None
    source = weight()
    parts = rtn.encode(scheme, source)
    return scheme, parts, Matrix(scheme, parts, source), source


@pytest.mark.parametrize("name", SCHEMES)
def test_it_begins_as_the_payload_that_it_is_made_of(name: str) -> None:
    scheme, parts, matrix, source = made(name)
    assert matrix.parts().keys() == parts.keys()
    for part, values in matrix.parts().items():
        np.testing.assert_array_equal(values, parts[part])
    np.testing.assert_array_equal(matrix.value.detach().numpy(), payload.dequantize(scheme, parts, source.shape[1]))


@pytest.mark.parametrize("name", SCHEMES)
def test_whatever_is_learned_is_a_payload_whose_numbers_are_those_that_were_trained(name: str) -> None:
    scheme, parts, matrix, source = made(name)
    generator = torch.Generator().manual_seed(2)
    for step in range(40):
        matrix.value.grad = torch.randn(source.shape, generator=generator)
        matrix.update(0.3, step)
    found = matrix.parts()
    assert {part: (values.dtype, values.shape) for part, values in found.items()} == {
        part: (values.dtype, values.shape) for part, values in parts.items()
    }
    assert not np.array_equal(found["codes"], parts["codes"])
    np.testing.assert_array_equal(matrix.value.detach().numpy(), payload.dequantize(scheme, found, source.shape[1]))


def test_a_code_moves_when_its_latent_crosses_the_middle_and_never_leaves_the_range() -> None:
    scheme = payload.Scheme(4, 32, "sym")
    scales = np.full((1, 1), 0.5, np.float16)
    codes = np.zeros((1, 32), np.uint8)
    codes[0, :3] = 8, 0, 15  # less 8: 0, -8, 7
    source = (codes.astype(np.float32) - 8) * 0.5
    source[0, 0] += 0.2 * 0.5
    matrix = Matrix(scheme, {"codes": payload.pack_nibbles(codes), "scales": scales}, source)
    gradient = torch.zeros(1, 32)
    gradient[0, :3] = torch.tensor([-1.0, 2.0, -3.0])
    matrix.value.grad = gradient.clone()
    matrix.update(0.25, 0)  # the first direction of Adam is the sign: 0.2 + 0.25 < 0.5
    assert payload.unpack_nibbles(matrix.parts()["codes"], 3)[0].tolist() == [8, 0, 15]
    matrix.value.grad = gradient.clone()
    matrix.update(0.25, 1)
    assert payload.unpack_nibbles(matrix.parts()["codes"], 3)[0].tolist() == [9, 0, 15]


def test_scales_and_vectors_move_by_a_tenth_of_the_rate_relative_to_their_size() -> None:
    _, parts, matrix, source = made("int4-g32-sym")
    matrix.value.grad = torch.from_numpy(source) * -1.0  # larger numbers are wanted: larger scales
    matrix.update(0.1, 0)
    grown = matrix.parts()["scales"].astype(np.float32) / np.where(parts["scales"] == 0, 1, parts["scales"])
    np.testing.assert_allclose(grown[parts["scales"] != 0], 1 + 0.1 * SCALES, rtol=1e-3)
    vector = Vector(np.array([2.0, -4.0], np.float32), 3.0)
    vector.value.grad = torch.tensor([1.0, -1.0])
    vector.update(0.1, 0)
    np.testing.assert_allclose(vector.parts()[""], [2 - 0.1 * SCALES * 3, -4 + 0.1 * SCALES * 3], rtol=1e-6)


def test_moments_are_those_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(50, generator=generator)
    expected = numbers.clone().requires_grad_()
    moments = Moments.of(numbers)
    adam = torch.optim.Adam([expected], lr=0.01, betas=(0.9, 0.95), eps=0.0)
    for step in range(5):
        gradient = torch.randn(50, generator=generator)
        expected.grad = gradient.clone()
        adam.step()
        numbers.sub_(moments.direction(gradient, step), alpha=0.01)
    torch.testing.assert_close(numbers, expected.detach())
