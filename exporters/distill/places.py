"""Where distillation computes: on a GPU that CUDA reaches where there is one, else on the processor.

On a GPU sums come out in an order that no two runs share, so the same export twice need not give the same bytes there.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def chosen() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def here() -> contextlib.AbstractContextManager[Any]:
    """While it is entered, tensors are made where distillation computes."""
    device = chosen()
    return contextlib.nullcontext() if device.type == "cpu" else device


def moved(values: npt.NDArray[Any]) -> Tensor:
    """An array where tensors are made now."""
    return torch.from_numpy(values).to(torch.get_default_device())


def fetched(values: Tensor) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = values.cpu().numpy()
    return found


def free() -> int | None:
    """Bytes of a GPU that are free; None on the processor."""
    return torch.cuda.mem_get_info()[0] if chosen().type == "cuda" else None
