"""Comparing a tensor of a checkpoint with the numbers that it stands for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge.errors import InternalError
from edge.payload import dequantize
from exporters.checkpoint import SourceTensor


def check_ranges(tensor: SourceTensor, expected: np.ndarray[Any, Any], *, carried: str | None) -> None:
    """The tensor is `expected`, whole and by rows, and its codes mean the same under the scheme that carries them."""
    assert tensor.shape == expected.shape
    assert (tensor.scheme.name if tensor.scheme else None) == carried
    assert bool(tensor.note) == (carried is None)
    rows = len(expected)
    for start, stop in ((0, rows), (3, 4), (5, rows - 2), (7, 7)):
        np.testing.assert_array_equal(tensor.read(start, stop), expected[start:stop])
        if tensor.scheme:
            parts = tensor.codes(start, stop)
            wanted = tensor.scheme.parts(stop - start, expected.shape[1])
            assert {key: part.shape for key, part in parts.items()} == {
                key: shape for key, (_, shape) in wanted.items()
            }
            padded = dequantize(tensor.scheme, parts, expected.shape[1] + tensor.scheme.group)
            np.testing.assert_array_equal(padded[:, : expected.shape[1]], expected[start:stop])
            assert not padded[:, expected.shape[1] :].any(), "a group's padding stands for zero"
        else:
            with pytest.raises(InternalError):
                tensor.codes(start, stop)
