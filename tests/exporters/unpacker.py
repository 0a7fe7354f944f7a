"""An unpacker of payloads that shares no line with the program: number by number, from docs/bundle-format.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file


def unpack_matrix(tensors: Mapping[str, Any], name: str, scheme: str, columns: int) -> npt.NDArray[np.float64]:
    """A matrix that is stored in one scheme."""
    if scheme in ("float16", "float32"):
        return np.asarray(tensors[name], np.float64)
    bits, group, kind = int(scheme[3]), int(scheme.split("-")[1][1:]), scheme.split("-")[2]
    codes, scales = tensors[f"{name}.codes"], tensors[f"{name}.scales"]
    found = np.zeros((len(codes), columns))
    for row in range(len(codes)):
        for column in range(columns):
            at = column // group
            q = int(codes[row, column]) if bits == 8 else int(codes[row, column // 2]) >> (4 * (column % 2)) & 15
            s = float(scales[row, at])
            if kind == "sym":
                found[row, column] = s * (q - (8 if bits == 4 else 128))
            elif kind == "zp":
                z = int(tensors[f"{name}.zeros"][row, at // 2]) >> (4 * (at % 2)) & 15
                found[row, column] = s * (q - z)
            else:
                found[row, column] = s * q + float(tensors[f"{name}.offsets"][row, at])
    return found


def unpack_weight(path: Path, name: str, layout: str, shape: tuple[int, int]) -> npt.NDArray[np.float64]:
    """A weight of a payload file as its layout in the manifest says, in one scheme or in runs."""
    tensors = load_file(path)
    axis, _, runs = layout.partition(" ")
    if not runs:
        return unpack_matrix(tensors, name, layout, shape[1])
    found = []
    for index, run in enumerate(runs.split(", ")):
        count, scheme = run.split(" ")
        found.append(unpack_matrix(tensors, f"{name}.run{index}", scheme, shape[1] if axis == "rows" else int(count)))
    return np.concatenate(found, axis=0 if axis == "rows" else 1)
