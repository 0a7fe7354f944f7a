"""A host of a Core ML package, written from the description of its functions alone: one sequence, no ring."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edge import rope
from edge.bundle import Bundle
from edge.coreml_interface import HIDDEN, PACKAGE, Function, Kind, inputs
from runtimes.coreml_interpreter.evaluate import Interpreter
from runtimes.coreml_interpreter.model import Package

COREML = pytest.mark.skipif(importlib.util.find_spec("coremltools") is None, reason="coremltools is not installed")
Array = npt.NDArray[Any]


def package_of(bundle: Bundle) -> Package:
    return Package(bundle.path / PACKAGE)


def run(bundle: Bundle, interpreter: Interpreter, ids: list[int], kind: Kind = "score", chunk: int = 7) -> Array:
    """Logits of every token by `score`, of one token after another by `decode`, of each chunk's last by `prefill`."""
    context = min(int(name.rpartition("_")[2]) for name in interpreter.package.names)
    function = Function(kind, context)
    kept: dict[str, list[Array]] = {}
    found = []
    step = 1 if kind == "decode" else chunk
    for start in range(0, len(ids), step):
        part = ids[start : start + step]
        given = _given(bundle, function, part, start, kept)
        made = interpreter.run(function.name, given)
        found.append(made["logits"][: len(part)] if kind == "score" else made["logits"])
        for name, rows in made.items():
            if name.startswith("new_"):
                kept.setdefault(name.removeprefix("new_"), []).append(rows[:, :, : len(part)])
    return np.concatenate(found)


def _given(bundle: Bundle, function: Function, part: list[int], start: int, kept: dict[str, list[Array]]) -> Any:
    spec, rows = bundle.spec, function.rows
    given: dict[str, Array] = {"tokens": np.array(part + [0] * (rows - len(part)), np.int32)}
    if function.kind == "prefill":
        given["last"] = np.array([len(part) - 1], np.int32)
    positions = np.arange(start, start + rows)
    for index, kind in enumerate(spec.ropes):
        given[f"cos_{index}"], given[f"sin_{index}"] = rope.angles(kind, positions, context=function.context)
    for name, value in inputs(spec, function).items():
        part_of, _, which = name.partition("_")
        if part_of == "past":
            given[name] = np.zeros(value.shape, np.float32)
            if start:
                rows_of = np.concatenate(kept[which], 2)[:, :, -value.shape[2] :]
                given[name][:, :, : rows_of.shape[2]] = rows_of
        elif part_of == "mask":
            window = spec.kv_groups[int(which)].window
            held = np.arange(max(0, start - value.shape[1]), start)
            distance = positions[:, None] - held
            given[name] = np.full(value.shape, HIDDEN, np.float32)
            given[name][:, : len(held)] = np.where(distance < (window or 1 << 30), 0, HIDDEN)
    return given
