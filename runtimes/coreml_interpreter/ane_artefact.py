"""The check of a bundle's package for the Neural Engine: its structure, its functions, and its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edge import coreml_ane_interface
from edge.artefacts import Reader
from edge.bundle import Bundle
from edge.coreml_ane_interface import KINDS, PACKAGE
from edge.errors import BundleError, UnsupportedError
from edge.ops import Linear
from runtimes.coreml_interpreter.artefact import check_interface
from runtimes.coreml_interpreter.check import Plan
from runtimes.coreml_interpreter.check import check as check_package
from runtimes.coreml_interpreter.evaluate import Interpreter
from runtimes.coreml_interpreter.model import Package

_HALF_STEP = 0.51  # of a channel's scale


def check(bundle: Bundle) -> str:
    """Raises BundleError for the first fault, or a matrix that is not the payload's within half a step of its int8."""
    package = Package(bundle.path / PACKAGE)
    plans = check_package(package)
    for plan in plans:
        check_interface(bundle, plan, KINDS, coreml_ane_interface.sides)
    count = sum(_compare(bundle, package, plan) for plan in plans[:1])
    return f"coreml-ane: {len(plans)} functions are well-formed; {count} matrices are the payload's, within half a step"


def weights(bundle: Bundle) -> Reader:
    raise UnsupportedError("the weights of a package for the Neural Engine are int8 of its own")


def examples(bundle: Bundle, tokens: Sequence[int]) -> Mapping[str, npt.NDArray[Any]]:
    raise UnsupportedError("there are no examples for the package for the Neural Engine")


def _compare(bundle: Bundle, package: Package, plan: Plan) -> int:
    """Compare all products' matrices, by the parts of their rows; how many there are."""
    interpreter = Interpreter(package, half=False)
    count = 0
    for op in bundle.graph.ops:
        if not isinstance(op.attrs, Linear):
            continue
        weight = op.attrs.weight
        stem = "weight_" + weight.name.replace(".", "_") + "_rows_"
        parts = {name: matrix for name, matrix in plan.matrices.items() if name.startswith(stem)}
        rows = 0
        for name in parts:
            start, stop = (int(part) for part in name.removeprefix(stem).split("_"))
            found = interpreter.matrix(plan, name)[:, :, 0, 0]
            expected = bundle.weights.read(weight.name, start, stop)
            steps = np.abs(found).max(axis=1, keepdims=True) / 127
            if found.shape != expected.shape or not (np.abs(found - expected) <= _HALF_STEP * steps + 1e-7).all():
                raise BundleError(f"{package.path}: {name} is not the payload's; export the model again")
            rows += stop - start
        if rows != weight.shape[0]:
            raise BundleError(f"{package.path}: {weight.name} has {rows} of {weight.shape[0]} rows")
        count += 1
    return count
