"""The differentiable ops that work on each row by itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from edge.layers import Activation
from edge.ops import Add, Embed, Gate, Linear, Norm, Select, Softcap
from exporters.distill.state import Pass


def embed(batch: Pass, attrs: Embed, inputs: Sequence[Tensor]) -> Tensor:
    return functional.embedding(inputs[0], batch.weights(attrs.weight)) * attrs.scale


def norm(batch: Pass, attrs: Norm, inputs: Sequence[Tensor]) -> Tensor:
    (x,) = inputs
    vectors = x.view(len(x), attrs.vectors, attrs.dim)
    scaled = vectors * torch.rsqrt(vectors.square().mean(dim=-1, keepdim=True) + attrs.eps)
    return (scaled * (batch.weights(attrs.weight) + attrs.offset)).view(x.shape)


def linear(batch: Pass, attrs: Linear, inputs: Sequence[Tensor]) -> Tensor:
    bias = batch.weights(attrs.bias) if attrs.bias else None
    return functional.linear(inputs[0], batch.weights(attrs.weight), bias)


def gate(batch: Pass, attrs: Gate, inputs: Sequence[Tensor]) -> Tensor:
    del batch
    return activate(attrs.activation, inputs[0]) * inputs[1]


def add(batch: Pass, attrs: Add, inputs: Sequence[Tensor]) -> Tensor:
    del batch, attrs
    return inputs[0] + inputs[1]


def select(batch: Pass, attrs: Select, inputs: Sequence[Tensor]) -> Tensor:
    """Every row counts."""
    del batch, attrs
    return inputs[0]


def softcap(batch: Pass, attrs: Softcap, inputs: Sequence[Tensor]) -> Tensor:
    del batch
    return attrs.cap * torch.tanh(inputs[0] / attrs.cap)


def activate(name: Activation, x: Tensor) -> Tensor:
    if name == "silu":
        return functional.silu(x)
    assert name == "gelu_tanh", name
    return functional.gelu(x, approximate="tanh")
