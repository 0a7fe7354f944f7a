"""Structural validation: every op is known, every type follows from its inputs, every constant lies where it should.

`plan` checks one function and gives what an evaluator needs. Nothing is computed and no blob's data is read, so that a
package of any size takes a second.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge.errors import BundleError, FormatError, found_in
from runtimes.coreml_interpreter import elementwise, products, shaping
from runtimes.coreml_interpreter.kind import Kind, Known
from runtimes.coreml_interpreter.model import Constant, Function, Operation, Package, Tensor

VERSION, OPSET = 9, "CoreML8"
KINDS: dict[str, Kind] = {**elementwise.KINDS, **shaping.KINDS, **products.KINDS}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONSTANT = "constexpr_"
_LARGEST = 65504.0  # of float16


@dataclass(frozen=True, slots=True)
class Step:
    """An op with its kind; `inputs` are names of values or constants by parameter, a list where it takes several."""

    op: Operation
    kind: Kind
    inputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """A function that was checked. `constants` are values by name, `types` those of every value.

    `matrices` are the steps whose results depend on constants alone, by output.
    """

    function: Function
    steps: tuple[Step, ...]
    constants: Mapping[str, Constant]
    types: Mapping[str, Tensor]
    matrices: Mapping[str, Step]


def check(package: Package) -> tuple[Plan, ...]:
    """Check all functions. Raises BundleError for the first fault."""
    if package.version != VERSION:
        raise BundleError(f"{package.path}: specification {package.version}; {VERSION} is read here")
    return tuple(plan(package, name) for name in package.names)


def plan(package: Package, name: str) -> Plan:
    """Check one function. Raises BundleError for the first fault."""
    function = package.function(name)
    with found_in(BundleError, f"{package.path}: function {name}"):
        return _Checker(package, function).run()


class _Checker:
    def __init__(self, package: Package, function: Function) -> None:
        self._package = package
        self._function = function
        self._types: dict[str, Tensor] = {}
        self._constants: dict[str, Constant] = {}
        self._steps: list[Step] = []

    def run(self) -> Plan:
        function = self._function
        if function.opset != OPSET:
            raise FormatError(f"opset {function.opset!r}; {OPSET} is read here")
        for name, kind in function.inputs.items():
            self._define(name, kind)
        for op in function.operations:
            try:
                self._operation(op)
            except FormatError as error:
                raise FormatError(f"{op.kind} {op.output!r}: {error}") from error
        missing = [name for name in function.outputs if name not in self._types]
        if missing:
            raise FormatError(f"its output {missing[0]!r} is computed nowhere")
        outputs = {name: self._types[name] for name in function.outputs}
        for side, ours, described in zip(
            ("input", "output"), (function.inputs, outputs), function.signature, strict=True
        ):
            for name in [*ours, *described]:
                if ours.get(name) != described.get(name):
                    found, told = (str(table.get(name, "absent")) for table in (ours, described))
                    raise FormatError(f"{side} {name} is {found} in the program and {told} in its description")
        matrices = {step.op.output: step for step in self._steps if step.op.kind.startswith(_CONSTANT)}
        return Plan(function, tuple(self._steps), self._constants, self._types, matrices)

    def _define(self, name: str, kind: Tensor) -> None:
        if not _NAME.fullmatch(name):
            raise FormatError(f"a value called {name!r}; names are letters, digits and underscores")
        if name in self._types:
            raise FormatError(f"the value {name!r} is defined twice")
        self._types[name] = kind

    def _operation(self, op: Operation) -> None:
        if op.kind == "const":
            if op.value is None or op.inputs or op.value.type != op.type:
                raise FormatError("a constant without a value of its type")
            self._constant(op.value)
            self._constants[op.output] = op.value
            self._define(op.output, op.type)
            return
        kind = KINDS.get(op.kind)
        if kind is None or op.value is not None:
            raise FormatError(f"an op that is not known here; known are const, {', '.join(sorted(KINDS))}")
        unknown = sorted(set(op.inputs) - set(kind.parameters))
        lacking = [name for name in kind.parameters if name not in op.inputs and name not in kind.optional]
        if unknown or lacking:
            raise FormatError(f"parameter {(unknown or lacking)[0]!r} is {'not known' if unknown else 'missing'}")
        inputs: dict[str, Any] = dict(kind.optional)
        known: dict[str, Any] = dict(kind.optional)
        for name, bound in op.inputs.items():
            if len(bound) != 1 and name != kind.several:
                raise FormatError(f"parameter {name} has {len(bound)} values")
            found = [self._known(item) for item in bound]
            inputs[name], known[name] = (list(bound), found) if name == kind.several else (bound[0], found[0])
        varying = [item for item in inputs.values() if isinstance(item, str) and item not in self._constants]
        if op.kind.startswith(_CONSTANT) and varying:
            raise FormatError(f"its input {varying[0]!r} is no constant")
        inferred = kind.infer(known)
        if inferred != op.type:
            raise FormatError(f"its inputs make {inferred}, and {op.type} is declared")
        self._define(op.output, op.type)
        self._steps.append(Step(op, kind, inputs))

    def _known(self, bound: str | Constant) -> Known:
        if isinstance(bound, Constant):
            self._constant(bound)
            return Known(bound.type, bound.value)
        if bound not in self._types:
            raise FormatError(f"its input {bound!r} is defined nowhere before it")
        constant = self._constants.get(bound)
        return Known(self._types[bound], None if constant is None else constant.value)

    def _constant(self, constant: Constant) -> None:
        if constant.offset is not None:
            self._package.blobs.check(constant.offset, constant.type.dtype, constant.type.shape)
        elif isinstance(constant.value, str):
            return
        elif constant.type.dtype == "float16" and not np.all(np.abs(np.asarray(constant.value)) <= _LARGEST):
            raise FormatError("a constant that float16 does not hold")
