"""A bundle's Core ML package on this Mac: the golden prompt replayed on each device, placement of ops, and speed.

    python -m benchmarks.coreml_device BUNDLE

The golden outputs beside the package were computed in float32; a device computes in float16. Seconds are medians of 20
calls behind 3 that are not counted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import tables
from edge import coreml_interface
from edge.bundle import Bundle, open_bundle
from edge.coreml_interface import GOLDEN, Function, Kind
from edge.safetensors import PADDING, read_header
from exporters import parity

_CALLS, _FIRST = 20, 3
_TYPES = {"F32": np.float32, "I32": np.int32}
_STEPS: tuple[Kind, ...] = ("prefill", "decode")
Arrays = dict[str, np.ndarray[Any, Any]]


def main() -> int:
    options = _parser().parse_args()
    bundle = open_bundle(options.bundle)
    rows = []
    for device in options.device or ["cpu", "gpu+cpu"]:
        rows += _replay(bundle, device)
    head = ("", "largest difference", "KL", "same top token", "ms", "ops on cpu", "on gpu", "on the Neural Engine")
    tables.show([tables.Table("Golden prompt", head, tuple(rows), (tables.machine(),))], markdown=options.markdown)
    return 0


def golden(bundle: Bundle) -> Arrays:
    """The arrays beside the package by name."""
    path = bundle.path / GOLDEN
    infos = {name: info for name, info in read_header(path).items() if not name.startswith(PADDING)}
    return {
        name: np.fromfile(path, _TYPES[info.dtype], int(np.prod(info.shape)), offset=info.start).reshape(info.shape)
        for name, info in infos.items()
    }


def replayed(bundle: Bundle, arrays: Mapping[str, np.ndarray[Any, Any]], kind: Kind) -> tuple[Function, Arrays]:
    """A function and its inputs: those beside the package, and the past that they are meant for."""
    function = Function(kind, int(arrays["context"][0]))
    count = int(arrays["prefill.in.last"][0]) + 1
    given = {}
    for name, value in coreml_interface.inputs(bundle.spec, function).items():
        if not name.startswith("past"):
            given[name] = arrays[f"{kind}.in.{name}"]
            continue
        given[name] = np.zeros(value.shape, np.float16)
        if kind == "decode":
            given[name][:, :, :count] = arrays[f"prefill.out.{name.replace('past', 'new')}"][:, :, :count]
    return function, given


def _replay(bundle: Bundle, device: str) -> list[tuple[str, ...]]:
    from runtimes.coreml_runtime import Models

    arrays, models, rows = golden(bundle), Models(bundle, device), []
    for kind in _STEPS:
        function, given = replayed(bundle, arrays, kind)
        logits = np.asarray(models.execute(function, given)["logits"], np.float32)
        found = parity.compare(arrays[f"{kind}.out.logits"], logits)
        seconds = []
        for _ in range(_FIRST + _CALLS):
            start = time.perf_counter()
            models.execute(function, given)
            seconds.append(time.perf_counter() - start)
        places: Counter[str] = Counter()
        for (_, place), count in models.placement(function).items():
            places[place] += count
        counts = (str(places[place]) for place in ("cpu", "gpu", "neuralengine"))
        rows.append(
            (f"{device}, {function.name}", f"{found.max_diff:.2g}", f"{found.mean_kl:.1e}", f"{found.top1:.0%}",
             f"{statistics.median(seconds[_FIRST:]) * 1e3:.2f}", *counts)
        )  # fmt: skip
    return rows


def _parser() -> argparse.ArgumentParser:
    parser = tables.parser(__doc__)
    parser.add_argument("bundle", type=Path, help="a bundle with a Core ML package")
    parser.add_argument("--device", action="append", help="cpu, gpu, gpu+cpu, ane or ane+cpu; repeatable")
    return parser


if __name__ == "__main__":
    sys.exit(main())
