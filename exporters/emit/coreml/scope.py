"""One function of the program under construction: its values by the Graph's names, their casts, and its constants.

A value is kept in the float type in which its op makes it; `take` casts it, once for each type. Large constants are
blobs: MIL sees a placeholder of their type and shape that takes no memory, and the package's writer streams the bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from edge.coreml_interface import Value
from exporters.emit.coreml.blobs import Blob
from exporters.emit.coreml.toolkit import Toolkit

Float = Literal["float16", "float32"]
_MIL = {"float16": "fp16", "float32": "fp32", "int32": "int32"}
# Left to coremltools, constants for them would have names that count through the process.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gather": {"batch_dims": 0, "validate_indices": False},
    "concat": {"interleave": False},
    "matmul": {"transpose_x": False, "transpose_y": False},
}
_STRANGE = re.compile(r"[^A-Za-z0-9_]")


class Scope:
    """`blobs` collects the constants of all functions; `wide` are the values that float16 cannot hold."""

    def __init__(
        self, toolkit: Toolkit, sides: tuple[dict[str, Value], dict[str, Value]], blobs: dict[str, Blob],
        wide: frozenset[str],
    ) -> None:  # fmt: skip
        self._toolkit = toolkit
        self._blobs = blobs
        self.wide = wide
        self._values: dict[tuple[str, str], Any] = {}  # (value, type or "" for the one it was made in)
        self._constants: dict[str, Any] = {}
        inputs, outputs = sides
        self._names = {*inputs, *outputs}
        placeholders = {
            name: toolkit.mb.placeholder(value.shape, dtype=self._builtin(value.dtype))
            for name, value in inputs.items()
        }
        self.function = toolkit.mil.Function(placeholders, opset_version=toolkit.opset)
        self.inputs: dict[str, Any] = dict(self.function.inputs)

    def op(self, kind: str, path: str, **inputs: Any) -> Any:
        """Add an op of MIL, named after a path. Inputs that are no values become constants."""
        return self._add(kind, self._name(path), inputs)

    def set(self, value: str, var: Any) -> None:
        """Give a value of the Graph."""
        self._values[value, ""] = var

    def take(self, value: str, dtype: Float) -> Any:
        """A value of the Graph in a float type."""
        made = self._values[value, ""]
        if self.dtype(made) == dtype:
            return made
        key = (value, dtype)
        if key not in self._values:
            self._values[key] = self.cast(made, dtype, f"{value}/{dtype}")
        return self._values[key]

    def cast(self, var: Any, dtype: Float, path: str) -> Any:
        return var if self.dtype(var) == dtype else self.op("cast", path, x=var, dtype=_MIL[dtype])

    def dtype(self, var: Any) -> str:
        return "float32" if var.dtype == self._toolkit.types.fp32 else "float16"

    def reshape(self, var: Any, path: str, shape: Sequence[int]) -> Any:
        return self.op("reshape", path, x=var, shape=list(shape))

    def transpose(self, var: Any, path: str, perm: Sequence[int]) -> Any:
        return self.op("transpose", path, x=var, perm=list(perm))

    def slice(self, var: Any, path: str, axis: int, bounds: tuple[int, int]) -> Any:
        """Part of a value along one axis."""
        begin, end = [0] * len(var.shape), list(var.shape)
        begin[axis], end[axis] = bounds
        return self.op("slice_by_index", path, x=var, begin=begin, end=end)

    def pick(self, var: Any, path: str, index: int) -> Any:
        """One entry of the first axis, which goes."""
        squeezed = [True] + [False] * (len(var.shape) - 1)
        begin, end = [0] * len(var.shape), list(var.shape)
        begin[0], end[0] = index, index + 1
        return self.op("slice_by_index", path, x=var, begin=begin, end=end, squeeze_mask=squeezed)

    def padded(self, var: Any, path: str, width: int) -> Any:
        """The last axis filled up with zeros; shared by all who ask for the same of a path."""
        lacking = width - var.shape[-1]
        if not lacking:
            return var
        key = (f"{path}/padded.{width}", self.dtype(var))
        if key not in self._values:
            pad = [0, 0] * (len(var.shape) - 1) + [0, lacking]
            zero = np.dtype(key[1]).type(0)
            self._values[key] = self.op("pad", "/".join(key), x=var, pad=pad, mode="constant", constant_val=zero)
        return self._values[key]

    def constant(self, key: str, blob: Blob) -> Any:
        """A large constant by its name in the package."""
        if key not in self._constants:
            held = np.broadcast_to(np.zeros((), self._numpy(blob.dtype)), blob.shape)
            var = self._toolkit.mb.const(val=held, name=self._name(key))
            var.op.weight_id = key
            self._blobs.setdefault(key, blob)
            self._constants[key] = var
        return self._constants[key]

    def shared(self, key: str, make: Any) -> Any:
        """What `make()` gives, made once a function."""
        if key not in self._constants:
            self._constants[key] = make()
        return self._constants[key]

    def finish(self, outputs: Mapping[str, tuple[str, dict[str, Any]]]) -> Any:
        """The function, its outputs made by an op of MIL each: name → (kind, inputs)."""
        self.function.set_outputs([self._add(kind, name, inputs) for name, (kind, inputs) in outputs.items()])
        return self.function

    def _add(self, kind: str, name: str, inputs: Mapping[str, Any]) -> Any:
        bound = {
            parameter: value if self._is_made(value) else self._parameter(kind, parameter, value)
            for parameter, value in {**_DEFAULTS.get(kind, {}), **inputs}.items()
        }
        return getattr(self._toolkit.mb, kind)(name=name, **bound)

    def _is_made(self, value: Any) -> bool:
        return isinstance(value[0] if isinstance(value, list) else value, self._toolkit.mil.Var)

    def _parameter(self, kind: str, parameter: str, value: Any) -> Any:
        """A small constant; equal ones are one. Its name depends on nothing but the function."""
        if not isinstance(value, str):
            value = np.asarray(value)
            value = value.astype(np.int32) if value.dtype == np.int64 else value
            value = value[()] if value.ndim == 0 else value
        numbers = value if isinstance(value, str) else (value.dtype.name, value.shape, value.tolist())
        key = f"parameter {numbers}"
        return self.shared(key, lambda: self._toolkit.mb.const(val=value, name=self._name(f"{kind}/{parameter}")))

    def _name(self, path: str) -> str:
        """A name that MIL takes: letters, digits and underscores, unique in the function."""
        plain = _STRANGE.sub("_", path.strip("/"))
        name, count = plain, 1
        while name in self._names:
            count += 1
            name = f"{plain}_{count}"
        self._names.add(name)
        return name

    def _builtin(self, dtype: str) -> Any:
        return getattr(self._toolkit.types, _MIL[dtype])

    def _numpy(self, dtype: str) -> Any:
        """The numpy type that coremltools takes for a type of MIL; its 4-bit types are marked bytes."""
        if dtype in ("int4", "uint4"):
            return self._toolkit.types.nptype_from_builtin(getattr(self._toolkit.types, dtype))
        return np.dtype(dtype)
