"""FP8 folders, against torch's eight-bit floats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edge.errors import CheckpointError
from exporters.checkpoint import Checkpoint
from tests.exporters.checkpoint.ranges import check_ranges

Open = Callable[[Path], Checkpoint]
Make = Callable[[Mapping[str, Any], Mapping[str, torch.Tensor]], Path]
RNG = np.random.default_rng(11)
NAME = "model.layers.0.self_attn.q_proj"
BLOCKS = {
    "group_0": {"weights": {"num_bits": 8, "strategy": "block", "block_structure": [32, 32]}, "targets": ["Linear"]}
}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_every_byte_means_what_torch_says(make: Make, opened: Open, dtype: torch.dtype) -> None:
    weight = torch.arange(256, dtype=torch.uint8).view(dtype).reshape(16, 16)
    folder = make(
        {"quantization_config": {"quant_method": "fp8"}},
        {f"{NAME}.weight": weight, f"{NAME}.weight_scale": torch.tensor(1.0), f"{NAME}.input_scale": torch.tensor(3.0)},
    )
    tensors = opened(folder).tensors
    assert list(tensors) == [f"{NAME}.weight"]
    np.testing.assert_array_equal(tensors[f"{NAME}.weight"].read(), weight.float().numpy())


@pytest.mark.parametrize(
    ("scales", "settings"),
    [
        ((), {"quant_method": "fp8"}),
        ((1,), {"quant_method": "compressed-tensors", "format": "float-quantized"}),
        ((70, 1), {"quant_method": "fbgemm_fp8"}),
        ((70,), {"quant_method": "fp8"}),
        ((3, 4), {"quant_method": "fp8", "weight_block_size": [32, 32]}),
        ((1, 1), {"quant_method": "fp8", "weight_block_size": [128, 128]}),
        ((3, 1), {"quant_method": "fp8", "weight_block_size": [32, 1 << 60]}),
        ((3, 4), {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": BLOCKS}),
    ],
)
@pytest.mark.parametrize("key", ["weight_scale", "weight_scale_inv"])
def test_fp8_scales(make: Make, opened: Open, scales: tuple[int, ...], settings: dict[str, Any], key: str) -> None:
    weight = torch.from_numpy(RNG.standard_normal((70, 100)).astype(np.float32)).to(torch.float8_e4m3fn)
    scale = torch.from_numpy(RNG.uniform(0.1, 2.0, scales).astype(np.float32))
    expected = weight.float().numpy().copy()
    for row in range(70):
        for column in range(100):
            if scales[:1] == (3,):
                expected[row, column] *= scale[row // 32, column // 32 if scales == (3, 4) else 0].item()
            else:
                expected[row, column] *= scale.reshape(-1)[row if 70 in scales else 0].item()
    folder = make({"quantization_config": settings}, {f"{NAME}.weight": weight, f"{NAME}.{key}": scale})
    check_ranges(opened(folder).tensors[f"{NAME}.weight"], expected, carried=None)


def test_fp8_blocks_of_several_groups_are_not_guessed(make: Make, opened: Open) -> None:
    settings = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {**BLOCKS}}
    settings["config_groups"]["group_1"] = {"weights": {"block_structure": [64, 64]}, "targets": ["q_proj"]}
    weight = {f"{NAME}.weight": torch.zeros((64, 64), dtype=torch.float8_e4m3fn)}
    folder = make({"quantization_config": settings}, {**weight, f"{NAME}.weight_scale": torch.ones(2, 2)})
    with pytest.raises(CheckpointError, match="weight_block_size is None"):
        opened(folder)


def test_fp8_scales_that_do_not_fit(make: Make, opened: Open) -> None:
    weight = torch.zeros((64, 64), dtype=torch.float8_e4m3fn)
    for scales, block, message in (
        ([torch.ones(2, 2)], [128, 128], r"\[2, 2\], which is no grid of 128 × 128 blocks of \[64, 64\]"),
        ([torch.ones(2, 2)], None, "weight_block_size is None"),
        ([torch.ones(2, 2)], [0, 32], "weight_block_size is"),
        ([], [32, 32], r"F8_E4M3 \[64, 64\] with 0 scales"),
        ([torch.ones(2, 2), torch.ones(2, 2)], [32, 32], "with 2 scales"),
        ([torch.ones(2, 2, dtype=torch.int32)], [32, 32], r"weight_scale' is I32; it must be F32 or"),
    ):
        names = (f"{NAME}.weight_scale", f"{NAME}.weight_scale_inv")
        settings = {"quant_method": "fp8", "weight_block_size": block}
        folder = make(
            {"quantization_config": settings}, {f"{NAME}.weight": weight, **dict(zip(names, scales, strict=False))}
        )
        with pytest.raises(CheckpointError, match=message):
            opened(folder)
