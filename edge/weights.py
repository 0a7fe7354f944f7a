"""Reading the payload of a bundle: the parts of each weight, as they are or dequantized."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge import payload
from edge.errors import BundleError, CheckpointError, OptionError
from edge.graph import Weight
from edge.safetensors import TensorInfo, read_header

_DTYPES: dict[str, np.dtype[Any]] = {"U8": np.dtype(np.uint8), "F16": np.dtype("<f2"), "F32": np.dtype("<f4")}


class Weights:
    """The weights of a payload file by canonical name. Reads are lazy; nothing is copied until it is used."""

    def __init__(self, path: Path, weights: Sequence[Weight], schemes: Mapping[str, str]) -> None:
        """Raises BundleError unless the file holds every weight in the layout of its scheme."""
        self.path = path
        self.shapes = {weight.name: weight.shape for weight in weights}
        self.schemes: dict[str, payload.Scheme | None] = {}
        try:
            self._tensors = read_header(path)
            for weight in weights:
                scheme = schemes.get(weight.name, "float32")
                self.schemes[weight.name] = payload.parse_scheme(scheme)
                self._check(weight, scheme)
        except (CheckpointError, OptionError) as error:
            raise BundleError(str(error)) from error

    def _check(self, weight: Weight, scheme: str) -> None:
        for tensor, dtype, shape in describe(weight, scheme):
            found = self._tensors.get(tensor)
            if found is None:
                raise BundleError(f"{self.path}: tensor {tensor!r} is missing")
            if (found.dtype, found.shape) != (dtype, shape):
                raise BundleError(
                    f"{self.path}: tensor {tensor!r} is {found.dtype} {list(found.shape)}, "
                    f"{dtype} {list(shape)} is needed"
                )

    def info(self, tensor: str) -> TensorInfo:
        """Where a tensor (`layers.0.attn.q.codes`) lies in the file."""
        return self._tensors[tensor]

    def tensor(self, tensor: str, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """Rows start…stop of a tensor, read into memory. Raises BundleError if the file has gone or shrunk."""
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
        """The parts of a quantized weight by suffix (see edge.payload), rows start…stop."""
        scheme = self.schemes[name]
        assert scheme is not None
        return {part: self.tensor(f"{name}.{part}", start, stop) for part in scheme.parts(1, 1)}

    def read(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        """Rows start…stop of a weight as float32, dequantized."""
        scheme = self.schemes[name]
        if scheme is None:
            return self.tensor(name, start, stop).astype(np.float32, copy=False)
        return payload.dequantize(scheme, self.parts(name, start, stop), self.shapes[name][1])

    def size(self, name: str) -> int:
        """Bytes that a weight takes in the file."""
        scheme = self.schemes[name]
        names = [name] if scheme is None else [f"{name}.{part}" for part in scheme.parts(1, 1)]
        return sum(self._tensors[item].stop - self._tensors[item].start for item in names)

    def count(self, name: str) -> int:
        """Parameters of a weight."""
        return math.prod(self.shapes[name])


def describe(weight: Weight, scheme_name: str) -> list[tuple[str, str, tuple[int, ...]]]:
    """The payload tensors of a weight under a scheme: (name, safetensors dtype, shape)."""
    scheme = payload.parse_scheme(scheme_name)
    if scheme is None:
        return [(weight.name, "F16" if scheme_name == "float16" else "F32", weight.shape)]
    if len(weight.shape) != 2:
        raise OptionError(f"{weight.name} is a vector; scheme {scheme_name} stores matrices")
    return [(f"{weight.name}.{part}", *entry) for part, entry in scheme.parts(*weight.shape).items()]
