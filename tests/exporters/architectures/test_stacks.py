"""Views over stacks of matrices: whatever rows are asked for, they are those of the whole, put together by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from edge.payload import Scheme
from exporters.architectures.stacks import EachTransposed, Flat, RowsOfEach, Stacked
from exporters.checkpoint import SourceTensor


@dataclass
class Source:
    """A tensor in memory; its codes are its numbers."""

    numbers: np.ndarray
    scheme: Scheme | None = None
    name: str = "x"
    dtype: str = "F32"
    note: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.numbers.shape

    def read(self, start: int = 0, stop: int | None = None) -> Any:
        return self.numbers[start:stop]

    def codes(self, start: int = 0, stop: int | None = None) -> dict[str, Any]:
        return {"codes": self.numbers[start:stop]}


STACK = np.arange(4 * 6 * 5, dtype=np.float32).reshape(4, 6, 5)
Q4 = Scheme(4, 32, "sym")
VIEWS: dict[str, tuple[SourceTensor, np.ndarray]] = {
    "stacked": (Stacked(tuple(Source(part) for part in STACK)), STACK.reshape(24, 5)),
    "flat": (Flat(Source(STACK)), STACK.reshape(24, 5)),
    "rows of each": (RowsOfEach(Source(STACK.reshape(24, 5)), 4, 2, 3), STACK[:, 2:5].reshape(12, 5)),
    "first of each": (RowsOfEach(Flat(Source(STACK)), 4, 0, 2), STACK[:, :2].reshape(8, 5)),
    "transposed": (EachTransposed(Source(STACK.reshape(24, 5)), 4), STACK.transpose(0, 2, 1).reshape(20, 6)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_any_range_of_rows(name: str) -> None:
    view, whole = VIEWS[name]
    assert view.shape == whole.shape
    np.testing.assert_array_equal(view.read(), whole)
    for start in range(len(whole) + 1):
        for stop in range(start, len(whole) + 1):
            np.testing.assert_array_equal(view.read(start, stop), whole[start:stop], err_msg=f"{start}…{stop}")
            if stop > start and name != "transposed":
                np.testing.assert_array_equal(view.codes(start, stop)["codes"], whole[start:stop])


def test_codes_are_carried_where_all_parts_have_one_scheme() -> None:
    alike = Stacked(tuple(Source(part, Q4) for part in STACK))
    mixed = Stacked((Source(STACK[0], Q4), Source(STACK[1], Scheme(8, 32, "sym"))))
    assert (alike.scheme, mixed.scheme) == (Q4, None)
    assert "quantized in different ways" in mixed.note
    turned = EachTransposed(Source(STACK.reshape(24, 5), Q4, dtype="Q4_0"), 4)
    assert turned.scheme is None
    assert "Q4_0 codes are not carried" in turned.note
