"""Reading the payload of a bundle: the parts of each weight, as they are or dequantized."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from edge import payload
from edge.errors import BundleError, FormatError, found_in
from edge.ops import Weight
from edge.safetensors import TensorInfo, read_header

Result = TypeVar("Result")
_DTYPES: dict[str, np.dtype[Any]] = {"U8": np.dtype(np.uint8), "F16": np.dtype("<f2"), "F32": np.dtype("<f4")}


class Weights:
    """The weights of a payload file by canonical name. Reads are lazy; nothing is copied until it is used.

    `runs` are what each weight is stored in: itself, or several matrices with a scheme each. `schemes`, `shapes`,
    `tensor`, `parts`, `size` and `count` know a run by its name as well. A weight of several runs may be read as if it
    were stored in one scheme, which `schemes` names: the one that holds all of them exactly, None for float32.
    `formats` are the names of these schemes, float16 and float32 among them.
    """

    def __init__(self, path: Path, weights: Sequence[Weight], schemes: Mapping[str, str]) -> None:
        """`schemes` are layouts (see edge.payload), float32 where absent.

        Raises BundleError unless the file holds every weight as its layout says.
        """
        self.path = path
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.schemes: dict[str, payload.Scheme | None] = {}
        self.formats: dict[str, str] = {}
        self.runs: dict[str, tuple[payload.Run, ...]] = {}
        self.axes: dict[str, payload.Axis] = {}
        with found_in(BundleError):
            self._tensors = read_header(path)
            for weight in weights:
                self._add(weight, schemes.get(weight.name, "float32"))

    def _add(self, weight: Weight, told: str) -> None:
        layout = payload.Layout.parse(told)
        for tensor, dtype, shape in describe(weight, told):
            found = self._tensors.get(tensor)
            if found is None:
                raise BundleError(f"{self.path}: tensor {tensor!r} is missing")
            if (found.dtype, found.shape) != (dtype, shape):
                raise BundleError(
                    f"{self.path}: tensor {tensor!r} is {found.dtype} {list(found.shape)}, "
                    f"{dtype} {list(shape)} is needed"
                )
        runs = layout.split(weight.name, weight.stored)
        self.runs[weight.name], self.axes[weight.name] = runs, layout.axis
        self.shapes[weight.name] = weight.stored
        if len(runs) > 1:
            held = payload.holds(runs, layout.axis)
            self.schemes[weight.name], self.formats[weight.name] = held, held.name if held else "float32"
        for run in runs:
            self.shapes[run.name], self.schemes[run.name] = run.shape, payload.parse_scheme(run.scheme)
            self.formats[run.name] = run.scheme

    def info(self, tensor: str) -> TensorInfo:
        """Where a tensor (`layers.0.attn.q.codes`) lies in the file."""
        return self._tensors[tensor]

    def tensor(self, tensor: str, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """Rows start…stop of a tensor, read into memory; of a weight in several runs, its numbers.

        Raises BundleError if the file has gone or shrunk.
        """
        if len(self.runs.get(tensor, ())) > 1:
            return self.read(tensor, start, stop)
        info = self._tensors[tensor]
        rows = info.shape[0]
        stop = rows if stop is None else min(stop, rows)
        shape = (stop - start, *info.shape[1:])
        offset = info.start + start * ((info.stop - info.start) // rows)
        try:
            found = np.fromfile(self.path, _DTYPES[info.dtype], math.prod(shape), offset=offset)
        except OSError as error:
            raise BundleError(f"{self.path}: cannot be read: {error.strerror}") from error
        if len(found) != math.prod(shape):
            raise BundleError(f"{self.path}: truncated while it was read: tensor {tensor!r}")
        return found.reshape(shape)

    def parts(self, name: str, start: int = 0, stop: int | None = None) -> dict[str, npt.NDArray[Any]]:
        """The parts of a quantized weight by suffix (see edge.payload), rows start…stop, in its entry of `schemes`."""
        scheme = self.schemes[name]
        assert scheme is not None
        if len(self.runs.get(name, ())) <= 1:
            return {part: self.tensor(f"{name}.{part}", start, stop) for part in scheme.parts(1, 1)}

        def wide(run: payload.Run, first: int, last: int) -> dict[str, npt.NDArray[Any]]:
            stored = self.schemes[run.name]
            assert stored is not None
            return payload.widen(stored, self.parts(run.name, first, last), run.shape[1])

        found = self._each_run(name, wide, start, stop)
        return {part: np.concatenate([item[part] for item in found], self._along(name)) for part in scheme.parts(1, 1)}

    def read(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        """Rows start…stop of a weight as float32, dequantized."""
        if len(self.runs.get(name, ())) > 1:
            found = self._each_run(name, lambda run, first, last: self.read(run.name, first, last), start, stop)
            return np.concatenate(found, self._along(name))
        scheme = self.schemes[name]
        if scheme is None:
            return self.tensor(name, start, stop).astype(np.float32, copy=False)
        return payload.dequantize(scheme, self.parts(name, start, stop), self.shapes[name][1])

    def _along(self, name: str) -> int:
        return 0 if self.axes[name] == "rows" else 1

    def _each_run(
        self, name: str, call: Callable[[payload.Run, int, int], Result], start: int, stop: int | None
    ) -> list[Result]:
        """What `call` makes of each run that holds some of the rows start…stop of a weight, and of its own rows."""
        rows = self.shapes[name][0]
        stop = rows if stop is None else min(stop, rows)
        if self.axes[name] == "columns":
            return [call(run, start, stop) for run in self.runs[name]]
        inside = [
            (run, max(start, run.start) - run.start, min(stop, run.stop) - run.start)
            for run in self.runs[name]
            if run.start < stop and start < run.stop
        ]
        return [call(*item) for item in inside or [(self.runs[name][0], 0, 0)]]

    def size(self, name: str) -> int:
        """Bytes that a weight takes in the file."""
        if len(self.runs.get(name, ())) > 1:
            return sum(self.size(run.name) for run in self.runs[name])
        scheme = self.schemes[name]
        names = [name] if scheme is None else [f"{name}.{part}" for part in scheme.parts(1, 1)]
        return sum(self._tensors[item].stop - self._tensors[item].start for item in names)

    def count(self, name: str) -> int:
        """Parameters of a weight."""
        return math.prod(self.shapes[name])


def describe(weight: Weight, layout: str) -> list[tuple[str, str, tuple[int, ...]]]:
    """The payload tensors of a weight under a layout: (name, safetensors dtype, shape). Raises FormatError."""
    found: list[tuple[str, str, tuple[int, ...]]] = []
    for run in payload.Layout.parse(layout).split(weight.name, weight.stored):
        scheme = payload.parse_scheme(run.scheme)
        if scheme is None:
            found.append((run.name, "F16" if run.scheme == "float16" else "F32", run.shape))
        elif len(run.shape) != 2:
            raise FormatError(f"{run.name} is a vector; scheme {run.scheme} stores matrices")
        else:
            found += [(f"{run.name}.{part}", *entry) for part, entry in scheme.parts(*run.shape).items()]
    return found
