"""The check of a bundle's Core ML package (see edge.artefacts): its structure, its functions, its weights, examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edge import coreml_interface, rope
from edge.artefacts import Reader
from edge.bundle import Bundle
from edge.coreml_interface import HIDDEN, KINDS, PACKAGE, Function, Kind, Value
from edge.decoder import DecoderSpec
from edge.errors import BundleError
from runtimes.coreml_interpreter.check import Plan
from runtimes.coreml_interpreter.check import check as check_package
from runtimes.coreml_interpreter.evaluate import Interpreter
from runtimes.coreml_interpreter.model import Package, Tensor
from runtimes.coreml_interpreter.weights import StoredWeights

Array = npt.NDArray[Any]
Sides = Callable[[DecoderSpec, Function], tuple[dict[str, Value], dict[str, Value]]]


def check(bundle: Bundle) -> str:
    """Raises BundleError for the first fault of the package, or weight that is not the payload's."""
    package = Package(bundle.path / PACKAGE)
    plans = check_package(package)
    for plan in plans:
        check_interface(bundle, plan, KINDS, coreml_interface.sides)
    count = StoredWeights(bundle, package, plans[0]).check()
    for plan in plans[1:]:
        StoredWeights(bundle, package, plan).check_same(plans[0])
    return f"coreml: {len(plans)} functions are well-formed; {count} weights are the payload's"


def weights(bundle: Bundle) -> Reader:
    """Raises BundleError for a package that is not well-formed."""
    package = Package(bundle.path / PACKAGE)
    return StoredWeights(bundle, package, Interpreter(package, half=False).plan(package.names[0])).read


def contexts(package: Package) -> tuple[int, ...]:
    """The contexts that a package has functions for, ascending."""
    return tuple(sorted({int(name.rpartition("_")[2]) for name in package.names if name.rpartition("_")[2].isdigit()}))


def examples(bundle: Bundle, tokens: Sequence[int]) -> dict[str, Array]:
    """A prompt through `prefill`, and the token behind it through `decode`, in the shortest context, exactly computed.

    `context`, `prefill.in.NAME`, `prefill.out.NAME` and the same of decode. All slots of prefill's past are empty;
    those of decode's hold the prompt's rows from slot 0 on, which are `prefill.out.new_…`: neither past is there.
    """
    interpreter = Interpreter(Package(bundle.path / PACKAGE), half=False)
    context = contexts(interpreter.package)[0]
    prompt = list(tokens[: min(len(tokens), Function("prefill", context).rows)])
    found: dict[str, Array] = {"context": np.array([context], np.int32)}
    kept: dict[str, Array] = {}
    for kind, part, start in (("prefill", prompt, 0), ("decode", [], len(prompt))):
        function = next(Function(name, context) for name in KINDS if name == kind)
        part = part or [int(found["prefill.out.logits"].argmax())]
        given = _given(bundle, function, part, start)
        past = {
            name: _past(value.shape, kept.get(name.replace("past", "new")), start)
            for name, value in coreml_interface.inputs(bundle.spec, function).items()
            if name.startswith("past")
        }
        made = interpreter.run(function.name, {**given, **past})
        kept = {name: rows for name, rows in made.items() if name.startswith("new")}
        found |= {f"{kind}.in.{name}": values for name, values in given.items()}
        found |= {f"{kind}.out.{name}": values for name, values in made.items()}
    return found


def _given(bundle: Bundle, function: Function, part: Sequence[int], start: int) -> dict[str, Array]:
    """The inputs but the past: tokens from position `start` on, all before them held in the first slots."""
    rows = function.rows
    given: dict[str, Array] = {"tokens": np.array([*part, *[0] * (rows - len(part))], np.int32)}
    if function.kind == "prefill":
        given["last"] = np.array([len(part) - 1], np.int32)
    positions = np.arange(start, start + rows, dtype=np.int64)
    for index, kind in enumerate(bundle.spec.ropes):
        given[f"cos_{index}"], given[f"sin_{index}"] = rope.angles(kind, positions, context=function.context)
    for index, kv in enumerate(bundle.spec.kv_groups):
        distance = positions[:, None] - np.arange(function.slots(kv.window))
        seen = (distance > positions[:, None] - start) & (distance < (kv.window or function.context + rows))
        given[f"mask_{index}"] = np.where(seen, np.float32(0), np.float32(HIDDEN))
    return given


def _past(shape: tuple[int, ...], new: Array | None, count: int) -> Array:
    """The past with the first rows of `new` in its first slots."""
    past = np.zeros(shape, np.float32)
    if new is not None:
        past[:, :, :count] = new[:, :, :count]
    return past


def check_interface(bundle: Bundle, plan: Plan, kinds: tuple[Kind, ...], sides: Sides) -> None:
    """Raise BundleError unless a function is of these kinds and has the inputs and outputs that the spec gives it."""
    kind, _, context = plan.function.name.rpartition("_")
    if kind not in kinds or not context.isdigit():
        raise BundleError(f"{bundle.path}: its Core ML package has a function {plan.function.name!r}, which is none")
    function = next(Function(name, int(context)) for name in kinds if name == kind)
    for side, expected in enumerate(sides(bundle.spec, function)):
        found = plan.function.signature[side]
        wanted = {name: Tensor(value.dtype, value.shape) for name, value in expected.items()}
        for name in [*wanted, *found]:
            if wanted.get(name) != found.get(name):
                there, needed = (str(table.get(name, "absent")) for table in (found, wanted))
                raise BundleError(
                    f"{bundle.path}: {name} of the Core ML function {plan.function.name} is {there}, and {needed} by "
                    "the manifest's spec; export the model again"
                )
