"""From a bundle to weights on the device: which way each matrix is multiplied, tried before it is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from edge.errors import UnsupportedError
from edge.graph import Graph
from edge.ops import Embed, Experts, LatentAttention, Linear, Norm, Router, Weight
from edge.payload import Run
from edge.weights import Weights
from runtimes.torch import kernels, products
from runtimes.torch.codes import Stored, Workspace, blocks, read, streamed
from runtimes.torch.kernels import Kernel
from runtimes.torch.matrix import Matrix, Rows, Stack
from runtimes.torch.products import Dequantized, Product
from runtimes.torch.state import ModelWeights


@dataclass(slots=True)
class Loader:
    """Reads weights of a payload one by one.

    dtype    of products
    dense    keep all numbers in this dtype; None: as few as possible
    ways     what became of each scheme: scheme → the way of its products, with what was measured or found amiss
    """

    weights: Weights
    work: Workspace
    dtype: torch.dtype
    kernel: Kernel | None
    dense: torch.dtype | None = None
    ways: dict[str, str] = field(default_factory=dict)
    _stored: dict[str, Stored] = field(default_factory=dict)
    _refused: set[str] = field(default_factory=set)

    def load(self, graph: Graph) -> ModelWeights:
        """All weights. Raises BundleError, UnsupportedError for an op that has weights and no reader here."""
        found = ModelWeights({}, {}, {}, {}, _chosen(graph))
        embedded = {op.attrs.weight.name for op in graph.ops if isinstance(op.attrs, Embed)}
        for op in graph.ops:
            loads = _LOADS.get(type(op.attrs))
            if loads is None and op.weights:
                raise UnsupportedError(f"the torch runtime knows no weights of op kind {op.kind!r} ({op.output})")
            if loads is not None:
                loads(self, found, op.attrs)
            for name in [name for name in self._stored if name.split(".run")[0] not in embedded]:
                del self._stored[name]
        return found

    def vector(self, weight: Weight, offset: float = 0.0) -> torch.Tensor:
        values = self.weights.read(weight.name) + np.float32(offset)
        return torch.from_numpy(values).to(self.work.device)

    def matrix(self, weight: Weight) -> Matrix:
        runs = self.weights.runs[weight.name]
        return Matrix(runs, self.weights.axes[weight.name], tuple(self._product(run) for run in runs))

    def rows(self, weight: Weight) -> Rows:
        runs = self.weights.runs[weight.name]
        return Rows(runs, self.weights.axes[weight.name], [self._read(run) for run in runs], self.work)

    def stack(self, weight: Weight) -> Stack:
        return Stack(self.rows(weight), weight.shape, self.dtype)

    def _read(self, run: Run) -> Stored:
        """A run on the device, once for all that use it."""
        if run.name not in self._stored:
            self._stored[run.name] = read(self.weights, run, self.work.device)
        return self._stored[run.name]

    def _parts(self, run: Run, multiple: int = 1) -> Iterator[Stored]:
        """A run some rows at a time: what is only brought into another form need not be on the device as a whole."""
        if run.name in self._stored:
            return blocks(self._stored[run.name], self.work, multiple)
        return streamed(self.weights, run, self.work, multiple)

    def _product(self, run: Run) -> Product:
        if self.dense is not None:
            return self._told(run, products.dense(run.shape, self._parts(run), self.work, self.dense))
        kernel, scheme = self.kernel, self.weights.schemes[run.name]
        if kernel is not None and scheme is not None and run.scheme not in self._refused:
            parts = self._parts(run, kernel.multiple)
            packed = kernels.pack(kernel, scheme, run.shape, parts, self.dtype, self.work)
            if run.scheme in self.ways:
                return packed
            error = kernels.error(packed, self._parts(run))
            if error <= kernels.TOLERANCE:
                self.ways[run.scheme] = f"{packed.way}, within {error:.2g} of dequantized products"
                return packed
            self._refused.add(run.scheme)
            self.ways[run.scheme] = (
                f"dequantized per layer: {packed.way} is off by {error:.2g} where {kernels.TOLERANCE:g} is allowed"
            )
        return self._told(run, Dequantized(self._read(run), self.work, _multiplied(self.dtype, self.work.device)))

    def _told(self, run: Run, product: Product) -> Product:
        self.ways.setdefault(run.scheme, product.way)
        return product


def _multiplied(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of ordinary products: the CPU is fastest in float32."""
    return torch.float32 if device.type == "cpu" else dtype


def _chosen(graph: Graph) -> dict[str, int]:
    return {op.attrs.gate.name: graph.experts_chosen(op) for op in graph.ops if isinstance(op.attrs, Experts)}


def _embed(loader: Loader, found: ModelWeights, attrs: Embed) -> None:
    found.rows[attrs.weight.name] = loader.rows(attrs.weight)


def _norm(loader: Loader, found: ModelWeights, attrs: Norm) -> None:
    found.vectors[attrs.weight.name] = loader.vector(attrs.weight, attrs.offset)


def _linear(loader: Loader, found: ModelWeights, attrs: Linear) -> None:
    found.matrices[attrs.weight.name] = loader.matrix(attrs.weight)
    if attrs.bias:
        found.vectors[attrs.bias.name] = loader.vector(attrs.bias)


def _router(loader: Loader, found: ModelWeights, attrs: Router) -> None:
    if attrs.bias:
        found.vectors[attrs.bias.name] = loader.vector(attrs.bias)


def _experts(loader: Loader, found: ModelWeights, attrs: Experts) -> None:
    found.stacks.update({weight.name: loader.stack(weight) for weight in (attrs.gate, attrs.up, attrs.down)})


def _latents(loader: Loader, found: ModelWeights, attrs: LatentAttention) -> None:
    found.stacks.update({weight.name: loader.stack(weight) for weight in (attrs.key_up, attrs.value_up)})


_LOADS: Mapping[type[Any], Any] = {
    Embed: _embed,
    Norm: _norm,
    Linear: _linear,
    Router: _router,
    Experts: _experts,
    LatentAttention: _latents,
}
