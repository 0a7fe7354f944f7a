"""GPTQ and AWQ folders, against words made by hand and a packer of single codes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import edge
from edge.errors import CheckpointError, UnsupportedError
from exporters.architectures import describe
from exporters.checkpoint import Checkpoint
from tests.exporters.checkpoint.ranges import check_ranges

Open = Callable[[Path], Checkpoint]
Make = Callable[[Mapping[str, Any], Mapping[str, torch.Tensor]], Path]
RNG = np.random.default_rng(11)
NAME = "model.layers.0.self_attn.q_proj"


def words(rows: Any, bits: int = 4) -> torch.Tensor:
    """Codes [n, k] packed along the last axis into int32, the first in the lowest bits."""
    per = 32 // bits
    packed = [
        [sum(int(code) << bits * i for i, code in enumerate(row[at : at + per])) for at in range(0, len(row), per)]
        for row in rows
    ]
    return torch.from_numpy(np.array(packed, np.uint32).view(np.int32).copy())


def awq_words(rows: Any) -> torch.Tensor:
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    return words([[row[at + i] for at in range(0, len(row), 8) for i in order] for row in rows])


class Packed:
    """A random weight [rows, columns] of 4-bit codes with its parts as GPTQ and AWQ store them."""

    def __init__(self, rows: int, columns: int, group: int, *, bits: int = 4, sym: bool = False) -> None:
        self.columns, self.group, self.bits = columns, group, bits
        groups = -(-columns // group)
        self.codes = RNG.integers(0, 1 << bits, (rows, columns))
        self.zeros = np.full((groups, rows), 8) if sym else RNG.integers(0, 1 << bits, (groups, rows))
        self.scales = torch.from_numpy(RNG.uniform(0.01, 0.1, (groups, rows))).half()
        self.order = np.arange(columns) // group

    def numbers(self) -> np.ndarray[Any, Any]:
        scale = self.scales.float().numpy().T[:, self.order]
        return (scale * (self.codes - self.zeros.T[:, self.order])).astype(np.float32)

    def gptq(self, shift: int) -> dict[str, torch.Tensor]:
        return {
            f"{NAME}.qweight": words(self.codes, self.bits).T.contiguous(),
            f"{NAME}.qzeros": words((self.zeros - shift) % (1 << self.bits), self.bits),
            f"{NAME}.scales": self.scales,
            f"{NAME}.g_idx": torch.from_numpy(self.order.astype(np.int32)),
        }

    def awq(self) -> dict[str, torch.Tensor]:
        return {
            f"{NAME}.qweight": awq_words(self.codes.T),
            f"{NAME}.qzeros": awq_words(self.zeros),
            f"{NAME}.scales": self.scales,
        }

    def settings(self, method: str, **more: Any) -> dict[str, Any]:
        group = -1 if self.group == self.columns else self.group
        return {"quantization_config": {"quant_method": method, "bits": self.bits, "group_size": group, **more}}


def test_packing_by_hand(make: Make, opened: Open) -> None:
    """Eight columns with codes 0…7 are the GPTQ word 0x76543210; eight rows with them the AWQ word 0x75316420."""
    packed = Packed(8, 32, 32, sym=True)
    packed.codes[:, :8] = np.arange(8)
    gptq = packed.gptq(1)
    assert gptq[f"{NAME}.qweight"][0, 0] == 0x76543210
    assert gptq[f"{NAME}.qzeros"][0, 0] == 0x77777777
    packed.codes[:, 0] = np.arange(8)
    assert packed.awq()[f"{NAME}.qweight"][0, 0] == 0x75316420
    assert opened(make(packed.settings("awq"), packed.awq())).tensors[f"{NAME}.weight"].read()[:, 0].tolist() == [
        np.float32(packed.scales[0, row].item()) * (row - 8) for row in range(8)
    ]


@pytest.mark.parametrize("sym", [True, False])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("kind", ["gptq", "gptq_v2", "awq"])
def test_gptq_and_awq_codes_are_carried(make: Make, opened: Open, kind: str, group: int, sym: bool) -> None:
    packed = Packed(24, 128, group, sym=sym)
    packed.zeros[0, 3] = 8 if sym else 0  # which the first format stores as fifteen
    if kind == "awq":
        folder = make(packed.settings("awq", version="gemm", zero_point=True), packed.awq())
    else:
        folder = make(packed.settings("gptq", checkpoint_format=kind), packed.gptq(int(kind == "gptq")))
    tensors = opened(folder).tensors
    assert list(tensors) == [f"{NAME}.weight"]
    check_ranges(tensors[f"{NAME}.weight"], packed.numbers(), carried=f"int4-g{group}-{'sym' if sym else 'zp'}")


def test_gptq_last_group_is_padded(make: Make, opened: Open) -> None:
    packed = Packed(24, 104, 32)
    tensor = opened(make(packed.settings("gptq"), packed.gptq(1))).tensors[f"{NAME}.weight"]
    check_ranges(tensor, packed.numbers(), carried="int4-g32-zp")


@pytest.mark.parametrize(
    ("columns", "group", "bits", "reason"),
    [
        (128, 16, 4, "groups of 16"),
        (64, 64, 8, "8-bit codes"),
        (64, 64, 2, "2-bit codes"),
        (256, 256, 4, "groups of 256"),
    ],
)
def test_gptq_that_no_scheme_holds(make: Make, opened: Open, columns: int, group: int, bits: int, reason: str) -> None:
    packed = Packed(32, columns, group, bits=bits)
    tensor = opened(make(packed.settings("gptq"), packed.gptq(1))).tensors[f"{NAME}.weight"]
    check_ranges(tensor, packed.numbers(), carried=None)
    assert f"GPTQ weights with {reason}" in tensor.note


def test_gptq_in_the_order_of_activations(make: Make, opened: Open) -> None:
    packed = Packed(24, 128, 32)
    packed.order = RNG.permutation(packed.order)
    tensor = opened(make(packed.settings("gptq", desc_act=True), packed.gptq(1))).tensors[f"{NAME}.weight"]
    check_ranges(tensor, packed.numbers(), carried=None)
    assert "columns in the order of activations" in tensor.note


def test_gptq_with_wide_scales(make: Make, opened: Open) -> None:
    packed = Packed(24, 128, 32)
    packed.scales = packed.scales.float() * 1.0001
    tensor = opened(make(packed.settings("gptq"), packed.gptq(1))).tensors[f"{NAME}.weight"]
    assert (tensor.scheme, tensor.note) == (None, "GPTQ weights with scales that are no float16 numbers: dequantized")
    np.testing.assert_allclose(tensor.read(2, 9), packed.numbers()[2:9], rtol=1e-6)


def test_packed_refusals(make: Make, opened: Open) -> None:
    packed = Packed(24, 128, 32)
    gptq, awq = packed.gptq(1), packed.awq()
    cases: list[tuple[dict[str, Any], dict[str, torch.Tensor], str]] = [
        (packed.settings("awq", version="gemv"), awq, "AWQ of version 'gemv'"),
        (packed.settings("awq", zero_point=False), awq, "zero_point False cannot be read"),
        (packed.settings("gptq", checkpoint_format="marlin"), gptq, "checkpoint format 'marlin' cannot be read"),
        (packed.settings("gptq", dynamic={"x": {"bits": 8}}), gptq, "GPTQ with `dynamic` settings"),
        (packed.settings("gptq", bits=3), gptq, "3 bits cannot be read; 2, 4, 8 can"),
        (packed.settings("gptq", group_size=0), gptq, "group_size is 0"),
        (packed.settings("gptq", group_size=64), gptq, "do not fit together"),
        (packed.settings("awq"), gptq, "do not fit together"),
        (packed.settings("gptq"), gptq | {f"{NAME}.g_idx": torch.full((128,), 4, dtype=torch.int32)}, "group 4 of 4"),
        (packed.settings("gptq"), gptq | {f"{NAME}.g_idx": torch.full((128,), -1, dtype=torch.int32)}, "of 4"),
        (packed.settings("gptq"), gptq | {f"{NAME}.g_idx": torch.zeros(64, dtype=torch.int32)}, "for 128 columns"),
        (packed.settings("gptq"), gptq | {f"{NAME}.weight": torch.ones(24, 128)}, "both quantized and plain"),
        (packed.settings("gptq"), gptq | {f"{NAME}.scales": torch.zeros(4, 24).int()}, "is I32; it must be"),
        (packed.settings("gptq"), {key: gptq[key] for key in gptq if "qzeros" not in key}, r"no \S+\.qzeros"),
    ]  # fmt: skip
    for config, tensors, message in cases:
        with pytest.raises((CheckpointError, UnsupportedError), match=message):
            opened(make(config, tensors))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quantized by 'bitsandbytes', which cannot be read"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "compressed-tensors with format 'pack-"),
        ({"load_in_8bit": True}, "quantized by None"),
        ({"quant_method": ["fp8"]}, "quantized by"),
        ([1], "must be a table"),
    ],
)
def test_other_formats_are_refused_by_name(make: Make, opened: Open, settings: Any, message: str) -> None:
    with pytest.raises((UnsupportedError, CheckpointError), match=message):
        opened(make({"quantization_config": settings}, {"x.weight": torch.zeros(4, 4, dtype=torch.uint8)}))


# ---- to the bundle ----


def test_a_quantized_model_is_carried_and_the_rest_is_reported(
    llama_folder: Path, make: Make, opened: Open, tmp_path: Path
) -> None:
    """q as 4-bit GPTQ, and o in the order of activations: one carried code by code, one dequantized and said so."""
    weights = load_file(llama_folder / "model.safetensors")
    quantized: dict[str, Packed] = {}
    for part in ("q_proj", "o_proj"):
        base = f"model.layers.0.self_attn.{part}"
        del weights[f"{base}.weight"]
        packed = quantized[part] = Packed(64, 64, 32)
        if part == "o_proj":
            packed.order = RNG.permutation(packed.order)
        weights |= {key.replace(NAME, base): tensor for key, tensor in packed.gptq(1).items()}
        weights[f"{base}.bias"] = torch.zeros(64)  # as old versions of AutoGPTQ store it for every matrix
    folder = make(packed.settings("gptq", desc_act=True), weights)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(llama_folder / name, folder)
    np.testing.assert_array_equal(
        describe(opened(folder)).weights["layers.0.attn.o"].read(), quantized["o_proj"].numbers()
    )
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[[rule]]\nmatch = "*"\nscheme = "float32"\ncarry = true\n')
    bundle = edge.export(folder, tmp_path / "out.dsedge", recipe=recipe)
    assert bundle.manifest.schemes == {"layers.0.attn.q": "int4-g32-zp"}
    np.testing.assert_array_equal(bundle.weights.read("layers.0.attn.q"), quantized["q_proj"].numbers())
    assert bundle.manifest.quality.notes == (
        "layers.0.attn.o: GPTQ weights with columns in the order of activations: dequantized",
    )
