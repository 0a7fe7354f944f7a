"""The quantized model that learns: the weights of a payload, some of which can be moved, and the payload then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from edge import payload
from edge.graph import Graph
from edge.ops import Norm, Weight
from edge.payload import Run
from edge.weights import Weights
from exporters.distill import learns
from exporters.distill.learned import Learned, Matrix, Vector
from exporters.distill.places import moved
from exporters.payload_writer import EncodedRows, Plan, jobs
from exporters.quant.method import Array, Parts


@dataclass(frozen=True, slots=True)
class _Used:
    """A run in the forward pass: its numbers, which `learned` moves if it is there."""

    parts: Parts
    numbers: Tensor
    learned: Learned | None


class Student:
    """The weights of a payload by name."""

    def __init__(self, graph: Graph, plans: Mapping[str, Plan], begin: Weights) -> None:
        self._graph, self._plans, self._begin = graph, plans, begin
        self._offsets = {op.attrs.weight.name: op.attrs.offset for op in graph.ops if isinstance(op.attrs, Norm)}
        self._runs = {
            run.name: self._use(weight, run, method)
            for weight in graph.weights
            for run, method in zip(begin.runs[weight.name], plans[weight.name].choice.methods, strict=True)
        }

    @property
    def learned(self) -> dict[str, Learned]:
        """What is learned, by the name of its run."""
        return {name: run.learned for name, run in self._runs.items() if run.learned is not None}

    def weight(self, weight: Weight) -> Tensor:
        """A weight in its shape, as it is used."""
        found = [self._runs[run.name].numbers for run in self._begin.runs[weight.name]]
        if len(found) == 1:
            return found[0].view(weight.shape)
        return torch.cat(found, dim=0 if self._begin.axes[weight.name] == "rows" else 1)

    def encode(self) -> Iterator[EncodedRows]:
        """The payload, with what was learned in the place of what it began with."""
        for weight in self._graph.weights:
            for name, found in groupby(jobs(weight, self._plans[weight.name].choice), lambda job: job.run.name):
                run = self._runs[name]
                parts = run.parts if run.learned is None else run.learned.parts()
                for job in found:
                    rows = slice(job.start, job.stop)
                    zero = not bool(run.numbers[rows].any())
                    yield EncodedRows(job, {part: values[rows] for part, values in parts.items()}, zero)

    def _use(self, weight: Weight, run: Run, method: str) -> _Used:
        scheme = payload.parse_scheme(run.scheme)
        if scheme is None:
            values = self._begin.tensor(run.name)
            vector = None if weight.is_matrix else Vector(values, self._size(weight, values))
            numbers = moved(np.array(values, np.float32)) if vector is None else vector.value
            return _Used({"": values}, numbers, vector)
        parts = {name: np.array(part) for name, part in self._begin.parts(run.name).items()}
        if learns(scheme, method):
            matrix = Matrix(scheme, parts, self._source(weight, run))
            return _Used(parts, matrix.value, matrix)
        return _Used(parts, moved(payload.dequantize(scheme, parts, run.shape[1])), None)

    def _size(self, weight: Weight, values: Array) -> float:
        """The root mean square of a vector's numbers, a norm's as they are multiplied with."""
        numbers = values.astype(np.float64) + self._offsets.get(weight.name, 0.0)
        return float(np.sqrt(np.mean(np.square(numbers))))

    def _source(self, weight: Weight, run: Run) -> Array:
        """The source's numbers of a run."""
        source = self._plans[weight.name].source
        if self._begin.axes[weight.name] == "rows":
            return source.read(run.start, run.stop)
        return np.ascontiguousarray(source.read()[:, run.start : run.stop])
