"""Computing the functions of a package with numpy, from nothing but the package.

Two modes. Exact: everything is float32, whatever the program declares. Half: each value that the program declares
float16 is rounded to it where it comes into being, weights among them, and what overflows is counted by op; sums within
an op are float32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from edge.errors import BundleError, FormatError, found_in
from runtimes.coreml_interpreter.check import Plan, Step, plan
from runtimes.coreml_interpreter.kind import FLOATS, Array
from runtimes.coreml_interpreter.model import Constant, Package, Tensor

_KEPT = 1_000_000_000  # numbers of weights up to which they are kept as float32


class Interpreter:
    """`overflows` counts numbers beyond float16 by op, in the half mode."""

    def __init__(self, package: Package, *, half: bool) -> None:
        self.package = package
        self.half = half
        self.overflows: Counter[str] = Counter()
        self._plans: dict[str, Plan] = {}
        self._constants: dict[Any, Array] = {}
        self._room = _KEPT

    def plan(self, function: str) -> Plan:
        """The checked function. Raises BundleError."""
        if function not in self._plans:
            self._plans[function] = plan(self.package, function)
        return self._plans[function]

    def run(self, function: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, float32. Raises FormatError for inputs of other names or shapes than the function's."""
        found = self.plan(function)
        given = {name: (*np.shape(values),) for name, values in inputs.items()}
        wanted = {name: kind.shape for name, kind in found.function.inputs.items()}
        if given != wanted:
            wrong = next(name for name in [*wanted, *given] if given.get(name) != wanted.get(name))
            raise FormatError(f"{function}: input {wrong} is {given.get(wrong)}, and {wanted.get(wrong)} is needed")
        values: dict[str, Any] = {
            name: self._stored(np.asarray(array), found.types[name], name) for name, array in inputs.items()
        }
        last = _last_uses(found)
        with found_in(BundleError, f"{self.package.path}: function {function}"), np.errstate(all="ignore"):
            for index, step in enumerate(found.steps):
                values[step.op.output] = self._step(found, step, values)
                for name in last.get(index, ()):
                    values.pop(name, None)
        return {name: values[name] for name in found.function.outputs}

    def _step(self, found: Plan, step: Step, values: Mapping[str, Any]) -> Any:
        if step.op.output in found.matrices:
            return None  # made where it is used
        inputs = {
            name: [self._value(found, item, values) for item in bound]
            if isinstance(bound, list)
            else self._value(found, bound, values)
            for name, bound in step.inputs.items()
        }
        result = np.asarray(step.kind.evaluate(inputs))
        if result.shape != step.op.type.shape:
            raise FormatError(f"{step.op.kind} {step.op.output}: made {list(result.shape)}, declared {step.op.type}")
        return result if step.kind.moves else self._stored(result, step.op.type, step.op.output)

    def _value(self, found: Plan, bound: Any, values: Mapping[str, Any]) -> Any:
        if bound is None:
            return None
        if isinstance(bound, Constant):
            return self._constant(bound)
        if bound in found.constants:
            return self._constant(found.constants[bound])
        value = values[bound]
        return self.matrix(found, bound) if value is None else value

    def matrix(self, found: Plan, name: str) -> Array:
        """A matrix made of codes, one of the plan's `matrices`; the same for all functions that have it."""
        step = found.matrices[name]
        bound: dict[str, Constant | None] = {
            part: found.constants[item] if isinstance(item, str) else item for part, item in step.inputs.items()
        }
        key = (step.op.kind, *((part, constant.offset) for part, constant in sorted(bound.items()) if constant))
        if key not in self._constants:
            inputs = {part: constant if constant is None else self._raw(constant) for part, constant in bound.items()}
            return self._keep(key, self._stored(step.kind.evaluate(inputs), step.op.type, name))
        return self._constants[key]

    def _constant(self, constant: Constant) -> Any:
        if constant.offset is None:
            return constant.value
        key = (constant.type, constant.offset)
        if key not in self._constants:
            return self._keep(key, self._raw(constant).astype(np.float32))
        return self._constants[key]

    def _raw(self, constant: Constant) -> Any:
        if constant.offset is None:
            return constant.value
        return self.package.blobs.read(constant.offset, constant.type.dtype, constant.type.shape)

    def _keep(self, key: Any, values: Array) -> Array:
        if values.size <= self._room:
            self._room -= values.size
            self._constants[key] = values
        return values

    def _stored(self, values: Array, kind: Tensor, name: str) -> Array:
        """Values as a type holds them."""
        if kind.dtype not in FLOATS:
            return values.astype(kind.dtype, copy=False)
        if not self.half or kind.dtype == "float32" or values.dtype == np.float16:
            return values.astype(np.float32, copy=False)
        rounded = values.astype(np.float16)
        if not np.isfinite(rounded).all():
            self.overflows[name] += int(np.count_nonzero(np.isinf(rounded) & np.isfinite(values)))
        return rounded.astype(np.float32)


def _last_uses(found: Plan) -> dict[int, list[str]]:
    """Step → the values that no later step reads."""
    last: dict[str, int] = {}
    for index, step in enumerate(found.steps):
        for bound in step.inputs.values():
            for item in bound if isinstance(bound, list) else [bound]:
                if isinstance(item, str):
                    last[item] = index
    for name in found.function.outputs:
        last.pop(name, None)
    freed: dict[int, list[str]] = {}
    for name, index in last.items():
        freed.setdefault(index, []).append(name)
    return freed
