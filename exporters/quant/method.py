"""What a quantizing method is, and the one table of methods.

A method turns some rows of a weight into the parts of a scheme (see edge.payload). It knows neither recipes, nor where
the parts go, nor who reads them: a recipe's rule names the method, the payload writer calls it for some rows
at a time.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt

from edge.errors import OptionError
from edge.payload import Scheme

Array = npt.NDArray[np.float32]
Parts = dict[str, npt.NDArray[Any]]
Statistic = Literal["mean_square", "moment"]


@dataclass(frozen=True, slots=True)
class Statistics:
    """What calibration found out about the input of a matrix, over `tokens` tokens; None where it was not collected.

    mean_square  [columns]            mean of the square of each column of the input
    moment       [columns, columns]   mean of input · inputᵀ
    """

    tokens: int
    mean_square: Array | None = None
    moment: Array | None = None


class Rows(Protocol):
    """Some rows of a weight in its source, read when they are asked for."""

    def read(self) -> Array:
        """The numbers [rows, columns], all of them finite and within float16's range."""
        ...

    def codes(self) -> Parts:
        """The source's own parts; only where the source is quantized in the scheme that is asked for."""
        ...


class Method(Protocol):
    """A module of the table. `NEEDS` names the statistics without which it cannot work."""

    NEEDS: tuple[Statistic, ...]

    def quantize(self, weight: Rows, scheme: Scheme, statistics: Statistics | None) -> Parts:
        """The parts of these rows in the scheme. Rows are independent of each other."""
        ...


METHODS: dict[str, str] = {
    "nearest": "exporters.quant.rtn",
    "carry": "exporters.quant.carry",
    "gptq": "exporters.quant.gptq",
}
DEFAULT = "nearest"


def find(name: str) -> Method:
    """The method of that name. Raises OptionError for an unknown one."""
    if name not in METHODS:
        raise OptionError(f"unknown method {name!r}; known are {', '.join(METHODS)}")
    return cast(Method, importlib.import_module(METHODS[name]))


def check_statistics(name: str, weight: str, statistics: Statistics | None) -> None:
    """Raise OptionError unless everything that the method needs was collected for the weight."""
    lacking = [need for need in find(name).NEEDS if statistics is None or getattr(statistics, need) is None]
    if lacking:
        raise OptionError(
            f"method {name} needs calibration statistics of {weight} ({', '.join(lacking)}), and none were collected; "
            f"name another method in the recipe, such as {DEFAULT}"
        )
