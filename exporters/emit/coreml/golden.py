"""Golden inputs and outputs beside a package: what a device replays to see whether it computes the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.safetensors import PADDING, plan_header

_TYPES = {"float32": "F32", "int32": "I32"}


def write(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """A safetensors file of arrays by name, float32 or int32. The same arrays give the same bytes. Raises OSError."""
    header, infos = plan_header((name, _TYPES[array.dtype.name], array.shape) for name, array in arrays.items())
    with open(path, "wb") as file:
        file.write(header)
        for name, info in infos.items():
            if name.startswith(PADDING):
                file.write(bytes(info.stop - info.start))
            else:
                file.write(np.ascontiguousarray(arrays[name]).tobytes())
