"""The payload's weights as a package holds them, by name, and whether they are the same numbers.

A matrix of the payload, or each run of one, is a constant called `weight_` and its name with underscores for other
signs; `_float32` behind it says that it is made as float32. Vectors are constants of their own, with the norm's offset
added to a norm's weight.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.bundle import Bundle
from edge.errors import BundleError
from edge.ops import Norm
from edge.payload import Run
from runtimes.coreml_interpreter.check import Plan
from runtimes.coreml_interpreter.model import Constant, Package
from runtimes.coreml_interpreter.products import shift_scale

_BLOCK = 1 << 22  # numbers that are read at a time
_STRANGE = re.compile(r"[^A-Za-z0-9]")
_HALF_UNIT = 1 / 2048  # of float16, of the number itself
Array = npt.NDArray[np.float32]


class StoredWeights:
    """The weights of one function of a package."""

    def __init__(self, bundle: Bundle, package: Package, plan: Plan) -> None:
        self._bundle, runs = bundle, bundle.weights.runs
        self._package = package
        self._plan = plan
        # A stack of matrices that the payload has in several runs is one constant.
        self._stored = {
            weight.name: runs[weight.name]
            if len(weight.shape) < 3
            else (Run(weight.name, 0, weight.stored[0], weight.stored, bundle.weights.formats[weight.name]),)
            for weight in bundle.graph.weights
        }
        self._offsets = {op.attrs.weight.name: op.attrs.offset for op in bundle.graph.ops if isinstance(op.attrs, Norm)}

    def check(self) -> int:
        """How many weights the package holds. Raises BundleError for one that is missing or has other numbers."""
        for run in self._runs():
            self._compare(run)
            self._package.blobs.forget()
        return len(self._stored)

    def check_same(self, other: Plan) -> None:
        """Raise BundleError unless another function refers to the same constants by the same names."""
        for run in self._runs():
            name = self._name(run.name)
            if self._places(self._plan, name) != self._places(other, name):
                raise BundleError(
                    f"{self._package.path}: {run.name} is another constant in {self._plan.function.name} than in "
                    f"{other.function.name}"
                )

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        """Rows start…stop of a weight as float32, a norm's without its offset."""
        weights = self._bundle.weights
        stop = weights.shapes[name][0] if stop is None else min(stop, weights.shapes[name][0])
        runs = self._stored[name]
        if len(runs) == 1:
            return self._rows(runs[0], start, stop)
        if weights.axes[name] == "columns":
            return np.concatenate([self._rows(run, start, stop) for run in runs], axis=1)
        inside = [(run, max(start, run.start), min(stop, run.stop)) for run in runs]
        return np.concatenate([self._rows(run, a - run.start, b - run.start) for run, a, b in inside if a < b])

    def _runs(self) -> Iterator[Run]:
        return itertools.chain.from_iterable(self._stored.values())

    def _name(self, weight: str) -> str:
        """What the constant of a weight is called in the program."""
        name = "weight_" + _STRANGE.sub("_", weight)
        for found in (name, f"{name}_float32"):
            if found in self._plan.matrices or found in self._plan.constants:
                return found
        raise BundleError(f"{self._package.path}: {self._plan.function.name} has no weight {weight}")

    def _places(self, plan: Plan, name: str) -> list[Any]:
        if name in plan.constants:
            return [plan.constants[name]]
        inputs = plan.matrices[name].inputs if name in plan.matrices else {}
        return [(part, self._constant(plan, item)) for part, item in sorted(inputs.items()) if item is not None]

    @staticmethod
    def _constant(plan: Plan, bound: Any) -> Constant:
        return bound if isinstance(bound, Constant) else plan.constants[bound]

    def _rows(self, run: Run, start: int, stop: int) -> Array:
        name = self._name(run.name)
        if name in self._plan.constants:
            found = self._flat(self._plan.constants[name], start, stop).astype(np.float32)
            return found - np.float32(self._offsets.get(run.name, 0.0))
        inputs = self._plan.matrices[name].inputs
        parts = {
            part: None if item is None else self._flat(self._constant(self._plan, item), start, stop)
            for part, item in inputs.items()
        }
        return shift_scale(parts)[:, : run.shape[-1]]

    def _flat(self, constant: Constant, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows start…stop of a constant in a file, a stack's matrices under one another."""
        assert constant.offset is not None
        return self._package.blobs.rows(constant.offset, constant.type.dtype, constant.type.shape, (start, stop))

    def _compare(self, run: Run) -> None:
        rows = run.shape[0]
        step = max(1, _BLOCK // (run.shape[1] if len(run.shape) > 1 else 1))
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            found, expected = self._rows(run, start, stop), self._bundle.weights.read(run.name, start, stop)
            allowed = self._rounding(run, start, stop)
            wrong = ~(np.abs(found - expected) <= allowed)
            if wrong.any():
                place = (start + int(np.argwhere(wrong)[0][0]), *map(int, np.argwhere(wrong)[0][1:]))
                raise BundleError(
                    f"{self._package.path}: {run.name} is not the payload's: {list(place)} is "
                    f"{found[wrong][0]:g} and {expected[wrong][0]:g} there; export the model again"
                )

    def _rounding(self, run: Run, start: int, stop: int) -> Any:
        """What a number may differ by: nothing, but for the rounding of an affine offset, in units of the scale."""
        if self._offsets.get(run.name):
            return 1e-6 * (1 + abs(self._offsets[run.name]))  # the offset was added in float32
        scheme = self._bundle.weights.schemes.get(run.name)
        if scheme is None or scheme.kind != "affine":
            return 0.0
        parts = self._bundle.weights.parts(run.name, start, stop)
        scales, offsets = (np.abs(parts[part].astype(np.float32)) for part in ("scales", "offsets"))
        allowed = (offsets + 15 * scales) * np.float32(_HALF_UNIT * 1.01)
        return np.repeat(allowed, scheme.group, axis=1)[:, : run.shape[1]]
