"""MLX-quantized folders, against MLX's own output and a packer of single codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edge.errors import CheckpointError, UnsupportedError
from exporters.checkpoint import Checkpoint
from tests.exporters.checkpoint.ranges import check_ranges

Open = Callable[[Path], Checkpoint]
Make = Callable[[Mapping[str, Any], Mapping[str, torch.Tensor]], Path]
RNG = np.random.default_rng(11)

# mlx.core.quantize(w, group_size=32, bits=b) of a [1, 32] float16 array by mlx 0.32 on a CPU: the codes, scale and bias
# as bits, and the first numbers of mlx.core.dequantize in float32.
MLX: dict[int, tuple[list[int], int, int, list[float]]] = {
    4: (
        [3400262779, 1989962169, 3939218224, 2522256743], 13458, 49298,
        [0.85693359375, -0.28564453125, -1.142578125, 1.7138671875, 0.85693359375, 0.5712890625],
    ),
    6: (
        [854931504, 2892419755, 2039084394, 2948391616, 1717436093, 2579864221], 11310, 49298,
        [0.849609375, -0.1953125, -1.0443115234375, 1.6986083984375, 0.980224609375, 0.58837890625],
    ),
    8: (
        [4182606275, 3551113674, 1789445529, 2036572118, 3208260864, 4272872381, 2656658551, 2607831402], 9247, 49298,
        [0.8539581298828125, -0.2085113525390625, -1.0456085205078125, 1.7232513427734375, 0.966644287109375,
         0.5641937255859375],
    ),
}  # fmt: skip


def halves(bits: int) -> torch.Tensor:
    return torch.tensor([[bits]], dtype=torch.int32).to(torch.uint16).view(torch.float16)


@pytest.mark.parametrize("bits", MLX)
def test_mlx_numbers_are_those_of_mlx(make: Make, opened: Open, bits: int) -> None:
    words, scale, bias, expected = MLX[bits]
    folder = make(
        {"quantization": {"group_size": 32, "bits": bits}},
        {
            "lm_head.weight": torch.tensor([words], dtype=torch.int64).to(torch.uint32),
            "lm_head.scales": halves(scale),
            "lm_head.biases": halves(bias),
        },
    )
    tensor = opened(folder).tensors["lm_head.weight"]
    assert (tensor.name, tensor.shape) == ("lm_head.weight", (1, 32))
    assert tensor.read()[0, :6].tolist() == expected


def mlx_parts(rows: int, columns: int, group: int, bits: int, dtype: torch.dtype = torch.float16) -> Any:
    """(weight, scales, biases, numbers): codes packed one by one into a stream of bits, the lowest first."""
    codes = RNG.integers(0, 1 << bits, (rows, columns))
    scales = torch.from_numpy(RNG.uniform(0.01, 0.1, (rows, columns // group))).to(dtype)
    biases = torch.from_numpy(RNG.uniform(-1, 1, (rows, columns // group))).to(dtype)
    streams = [sum(int(code) << bits * i for i, code in enumerate(row)) for row in codes]
    words = [[stream >> 32 * i & 0xFFFFFFFF for i in range(columns * bits // 32)] for stream in streams]
    wide = [np.repeat(part.float().numpy(), group, axis=1) for part in (scales, biases)]
    packed = torch.tensor(words, dtype=torch.int64).to(torch.uint32)
    return packed, scales, biases, (wide[0] * codes.astype(np.float32) + wide[1]).astype(np.float32)


def named(base: str, parts: Any) -> dict[str, torch.Tensor]:
    return {f"{base}.{key}": part for key, part in zip(("weight", "scales", "biases"), parts[:3], strict=True)}


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_mlx_four_bits_are_carried(make: Make, opened: Open, bits: int, group: int) -> None:
    parts = mlx_parts(20, 256, group, bits)
    tensor = opened(make({"quantization": {"group_size": group, "bits": bits}}, named("lm_head", parts))).tensors
    carried = f"int4-g{group}-affine" if bits == 4 else None
    check_ranges(tensor["lm_head.weight"], parts[3], carried=carried)


def test_mlx_scales_decide_whether_codes_are_carried(make: Make, opened: Open) -> None:
    """A bfloat16 may be a float16 or not; one that is not anywhere in the tensor means that the codes stay behind."""
    settings = {"quantization": {"group_size": 64, "bits": 4}}
    parts = mlx_parts(20, 128, 64, 4, torch.bfloat16)
    check_ranges(opened(make(settings, named("x", parts))).tensors["x.weight"], parts[3], carried="int4-g64-affine")
    for value in (1e-7, 1e6, float("nan"), float("inf")):
        parts[2][19, 1] = value
        tensor = opened(make(settings, named("x", parts))).tensors["x.weight"]
        assert tensor.scheme is None, value
        assert "no float16" in tensor.note


def test_mlx_settings_of_single_modules(make: Make, opened: Open) -> None:
    settings: dict[str, Any] = {"group_size": 64, "bits": 4, "wide": {"group_size": 32, "bits": 8}, "plain": False}
    wide, narrow = mlx_parts(8, 64, 32, 8), mlx_parts(8, 64, 64, 4)
    stored = named("wide", wide) | named("narrow", narrow) | {"plain.weight": torch.ones(8, 64)}
    tensors = opened(make({"quantization": settings, "quantization_config": settings}, stored)).tensors
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {
        "wide.weight": "MLX 8-bit", "narrow.weight": "MLX 4-bit", "plain.weight": "F32",
    }  # fmt: skip
    np.testing.assert_array_equal(tensors["wide.weight"].read(), wide[3])
    np.testing.assert_array_equal(tensors["plain.weight"].read(), np.ones((8, 64)))


def test_mlx_refusals(make: Make, opened: Open) -> None:
    parts = named("x", mlx_parts(8, 64, 64, 4))
    settings = {"group_size": 64, "bits": 4}
    with pytest.raises(UnsupportedError, match="x is quantized in MLX's mode 'mxfp4'; only affine"):
        opened(make({"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}, parts))
    with pytest.raises(CheckpointError, match="x has 7 bits in groups of 64"):
        opened(make({"quantization": {"group_size": 64, "bits": 7}}, parts))
    with pytest.raises(CheckpointError, match="do not fit 4 bits in groups of 32"):
        opened(make({"quantization": {"group_size": 32, "bits": 4}}, parts))
    del parts["x.biases"]
    with pytest.raises(CheckpointError, match=r"'x\.weight' is quantized but there is no x\.biases"):
        opened(make({"quantization": settings}, parts))
