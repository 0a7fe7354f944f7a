"""Products with the payload's matrices, and which float type they are computed in."""

from __future__ import annotations

from typing import Any

import numpy as np

from edge.layers import Activation
from edge.ops import Linear, Op
from edge.payload import Run
from exporters.emit.coreml.blobs import Blob
from exporters.emit.coreml.matrices import Coded, Matrices
from exporters.emit.coreml.scope import Float, Scope

_ACTIVATIONS: dict[Activation, tuple[str, dict[str, str]]] = {
    "silu": ("silu", {}),
    "gelu_tanh": ("gelu", {"mode": "TANH_APPROXIMATION"}),
}


class Linears:
    """Linears and matrices of one function."""

    def __init__(self, scope: Scope, matrices: Matrices) -> None:
        self._scope = scope
        self._matrices = matrices

    def width(self, op: Op[Any]) -> Float:
        """float32 where float16 holds an input or the result of an op, else float16."""
        return "float32" if self._scope.wide.intersection((*op.inputs, op.output)) else "float16"

    def activate(self, activation: Activation, x: Any, path: str) -> Any:
        kind, attributes = _ACTIVATIONS[activation]
        return self._scope.op(kind, path, x=x, **attributes)

    def matrix(self, name: str, shape: tuple[int, ...], *, wide: bool) -> Any:
        """A weight, or a run of one, dequantized; its columns are padded to whole groups."""
        found = self._matrices.describe(name, shape, wide=wide)
        if isinstance(found, Blob):
            return self._scope.constant(weight_key(name, wide=found.dtype == "float32"), found)
        key = weight_key(name, wide=wide)
        return self._scope.shared(f"matrix {key}", lambda: self._dequantized(name, key, found))

    def vector(self, name: str, offset: float = 0.0) -> Any:
        """A vector plus a number, float32."""
        return self._scope.constant(weight_key(name, wide=False), self._matrices.vector(name, offset))

    def emit(self, op: Op[Linear]) -> None:
        """x · weightᵀ + bias, a product for each run of the weight."""
        weight, scope = op.attrs.weight, self._scope
        runs = self._matrices.runs(weight.name)
        dtype = self.width(op)
        if len(runs) == 1:
            result = self._product(op.inputs[0], runs[0], dtype, op.output)
        elif self._matrices.axis(weight.name) == "rows":
            parts = [self._product(op.inputs[0], run, dtype, f"{op.output}/{run.name}") for run in runs]
            parts = [scope.cast(part, "float32", f"{op.output}/float32") for part in parts]
            result = scope.op("concat", f"{op.output}/rows", values=parts, axis=-1)
        else:
            result = None
            for run in runs:
                part = self._product(op.inputs[0], run, dtype, f"{op.output}/{run.name}", columns=(run.start, run.stop))
                part = scope.cast(part, "float32", f"{op.output}/float32")
                result = part if result is None else scope.op("add", f"{op.output}/sum", x=result, y=part)
        if op.attrs.bias:
            bias = self.vector(op.attrs.bias.name)
            result = scope.op("add", op.output, x=scope.cast(result, "float32", f"{op.output}/float32"), y=bias)
        scope.set(op.output, result)

    def _product(self, value: str, run: Run, dtype: Float, path: str, *, columns: tuple[int, int] | None = None) -> Any:
        scope = self._scope
        matrix = self.matrix(run.name, run.shape, wide=dtype == "float32")
        dtype = "float32" if scope.dtype(matrix) == "float32" else "float16"
        x = scope.take(value, dtype)
        if columns is not None:
            value = f"{value}/columns.{columns[0]}.{columns[1]}"
            x = scope.shared(f"{value} {dtype}", lambda: scope.slice(x, value, 1, columns))
        # `linear` has a bias always; coremltools would make one of zeros for each op.
        zeros = scope.constant(f"zeros.{run.shape[0]}/{dtype}", numbers(np.zeros(run.shape[0], dtype)))
        return scope.op("linear", path, x=scope.padded(x, value, matrix.shape[-1]), weight=matrix, bias=zeros)

    def _dequantized(self, name: str, key: str, coded: Coded) -> Any:
        inputs = {
            "data": self._scope.constant(f"{name}/codes", coded.data),
            "scale": self._scope.constant(f"{name}/scales.{coded.scale.dtype}", coded.scale),
        }
        if coded.offset is not None:
            inputs["offset"] = self._scope.constant(f"{name}/offsets", coded.offset)
        return self._scope.op("constexpr_blockwise_shift_scale", key, **inputs)


def softcap(scope: Scope, x: Any, cap: float, path: str) -> Any:
    """cap · tanh(x / cap), in the type of x, which must hold the cap exactly."""
    number = np.dtype(scope.dtype(x)).type(cap)
    bent = scope.op("tanh", f"{path}/tanh", x=scope.op("real_div", f"{path}/scaled", x=x, y=number))
    return scope.op("mul", path, x=bent, y=number)


def weight_key(name: str, *, wide: bool) -> str:
    """What the constant of a weight is called in the package: readers find it by that."""
    return f"weight/{name}/float32" if wide else f"weight/{name}"


def numbers(values: np.ndarray[Any, Any]) -> Blob:
    """A constant that is not of the payload, float16 or float32."""
    return Blob(values.dtype.name, values.shape, lambda: iter([values.tobytes()]))
