"""What a quantizing method is, and the one table of methods.

A method turns some rows of a weight into the parts of a scheme (see edge.payload). It knows neither recipes, nor where
the parts go, nor who reads them: a recipe's rule names the method, the payload writer calls it for some rows
at a time.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from edge.errors import OptionError
from edge.payload import Scheme

Array = npt.NDArray[np.float32]
Parts = dict[str, npt.NDArray[Any]]
Statistic = Literal["mean_square", "moment", "heads"]
Result = TypeVar("Result")


class Memo:
    """What a method has worked out of statistics, for all rows and matrices that share them; made anew each time where
    it is not worth its memory."""

    def __init__(self, *, keep: bool = True) -> None:
        self._keep = keep
        self._found: dict[str, Any] = {}
        self._lock = threading.Lock()

    def get(self, name: str, make: Callable[[], Result]) -> Result:
        """What `make` gave when the name first came up; other threads wait for it."""
        if not self._keep:
            return make()
        with self._lock:
            if name not in self._found:
                self._found[name] = make()
            return cast(Result, self._found[name])


@dataclass(frozen=True, slots=True)
class Statistics:
    """What calibration found out about the input of a matrix, over `tokens` tokens; None where it was not collected.

    mean_square  [columns]            mean of the square of each column of the input
    moment       [columns, columns]   mean of input · inputᵀ
    heads        [heads, head_dim, head_dim]  of queries and keys alone: the second moment of what each head is
                                      multiplied with, see exporters.calibration.heads
    """

    tokens: int
    mean_square: Array | None = None
    moment: Array | None = None
    heads: Array | None = None
    memo: Memo = field(default_factory=Memo, compare=False, repr=False)


class Rows(Protocol):
    """Some rows of a weight in its source, read when they are asked for."""

    def read(self) -> Array:
        """The numbers [rows, columns], all of them finite and within float16's range."""
        ...

    def codes(self) -> Parts:
        """The source's own parts; only where the source is quantized in the scheme that is asked for."""
        ...


class Method(Protocol):
    """A module of the table. `NEEDS` names the statistics that are collected for it."""

    NEEDS: tuple[Statistic, ...]

    def quantize(self, weight: Rows, scheme: Scheme, statistics: Statistics | None) -> Parts:
        """The parts of these rows in the scheme. Rows are independent of each other."""
        ...


METHODS: dict[str, str] = {
    "nearest": "exporters.quant.rtn",
    "carry": "exporters.quant.carry",
    "gptq": "exporters.quant.gptq",
    "heads": "exporters.quant.heads",
}
DEFAULT = "nearest"


def find(name: str) -> Method:
    """The method of that name. Raises OptionError for an unknown one."""
    if name not in METHODS:
        raise OptionError(f"unknown method {name!r}; known are {', '.join(METHODS)}")
    return cast(Method, importlib.import_module(METHODS[name]))


def check_statistics(name: str, weight: str, statistics: Statistics | tuple[Statistics, ...] | None) -> None:
    """Raise OptionError unless everything that the method needs was collected for the weight, or all of its stack."""
    found = statistics if isinstance(statistics, tuple) else (statistics,)
    needs = (need for need in find(name).NEEDS if need != "heads")  # which most matrices have none of
    lacking = [need for need in needs if any(getattr(item, need, None) is None for item in found)]
    if lacking:
        raise OptionError(
            f"method {name} needs calibration statistics of {weight} ({', '.join(lacking)}), and none were collected; "
            f"name another method in the recipe, such as {DEFAULT}"
        )
