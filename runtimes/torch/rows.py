"""The evaluators of ops that work on each row by itself. Values are float32; products are in the model's own dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from edge.layers import Activation
from edge.ops import Add, Embed, Gate, Linear, Norm, Select, Softcap
from runtimes.torch.state import State


def embed(state: State, attrs: Embed, inputs: Sequence[Tensor]) -> Tensor:
    return state.weights.rows[attrs.weight.name].take(inputs[0]) * attrs.scale


def norm(state: State, attrs: Norm, inputs: Sequence[Tensor]) -> Tensor:
    (x,) = inputs
    vectors = x.view(len(x), attrs.vectors, attrs.dim)
    scaled = vectors * torch.rsqrt(vectors.square().mean(dim=-1, keepdim=True) + attrs.eps)
    return (scaled * state.weights.vectors[attrs.weight.name]).view(x.shape)


def linear(state: State, attrs: Linear, inputs: Sequence[Tensor]) -> Tensor:
    found = state.weights.matrices[attrs.weight.name].times(inputs[0])
    return found + state.weights.vectors[attrs.bias.name] if attrs.bias else found


def gate(state: State, attrs: Gate, inputs: Sequence[Tensor]) -> Tensor:
    del state
    return activate(attrs.activation, inputs[0]) * inputs[1]


def add(state: State, attrs: Add, inputs: Sequence[Tensor]) -> Tensor:
    del state, attrs
    return inputs[0] + inputs[1]


def select(state: State, attrs: Select, inputs: Sequence[Tensor]) -> Tensor:
    del attrs
    return inputs[0][state.step.wanted]


def softcap(state: State, attrs: Softcap, inputs: Sequence[Tensor]) -> Tensor:
    del state
    return attrs.cap * torch.tanh(inputs[0] / attrs.cap)


def activate(name: Activation, x: Tensor) -> Tensor:
    if name == "silu":
        return functional.silu(x)
    assert name == "gelu_tanh", name
    return functional.gelu(x, approximate="tanh")
