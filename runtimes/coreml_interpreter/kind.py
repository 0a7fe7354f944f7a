"""What is known of a kind of op: its parameters, the type of its output, and how it is computed.

`infer` works on types and on the constants among the inputs, `evaluate` on arrays. float16 and float32 are both
computed in float32; the evaluator rounds results that the program declares float16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.errors import FormatError
from runtimes.coreml_interpreter.model import Tensor

Array = npt.NDArray[Any]
FLOATS = ("float16", "float32")


@dataclass(frozen=True, slots=True)
class Known:
    """An input before anything is computed: its type, and its value where it is a constant of the program itself."""

    type: Tensor
    value: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    def ints(self) -> list[int]:
        """A constant list of whole numbers. Raises FormatError where it is none."""
        if self.value is None or self.dtype != "int32":
            raise FormatError(f"a parameter is {self.type} where constant whole numbers are needed")
        return [int(i) for i in np.atleast_1d(self.value)]

    def flags(self) -> list[bool]:
        """A constant list of truth values. Raises FormatError where it is none."""
        if self.value is None or self.dtype != "bool":
            raise FormatError(f"a parameter is {self.type} where constant truth values are needed")
        return [bool(i) for i in np.atleast_1d(self.value)]

    def text(self) -> str:
        """A constant text. Raises FormatError where it is none."""
        if not isinstance(self.value, str):
            raise FormatError(f"a parameter is {self.type} where a constant text is needed")
        return self.value


# A parameter has one input, or a list of them where the kind takes several.
Inputs = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """`several` names the parameter that takes a list; `optional` those that may be absent, with what stands for them.

    `moves`: the output has numbers of the inputs and no others, so that rounding would change none.
    """

    parameters: tuple[str, ...]
    infer: Callable[[Inputs], Tensor]
    evaluate: Callable[[Inputs], Array]
    several: str = ""
    optional: Mapping[str, Any] = field(default_factory=dict)
    moves: bool = False


def require(condition: bool, message: str) -> None:
    """Raise FormatError unless the condition holds."""
    if not condition:
        raise FormatError(message)


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the first. Raises FormatError for one that is not there."""
    require(-rank <= axis < rank, f"axis {axis} of {rank}")
    return axis % rank


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of several that are spread over each other. Raises FormatError where they cannot be."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise FormatError(f"shapes {', '.join(str(list(shape)) for shape in shapes)} do not fit each other") from error
