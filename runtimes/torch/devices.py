"""The devices that PyTorch offers here, what each computes in by itself, and how much memory it has."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from edge.memory import available_memory
from edge.options import RuntimeOptions

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MAC_WITH_BFLOAT16 = (14, 0)
_AMPERE = (8, 0)  # the first of NVIDIA's with bfloat16, and with a kernel for int4


def found() -> list[str]:
    """The devices that this installation of torch and this machine have together, the fastest first."""
    names = []
    if torch.cuda.is_available():
        names.append("cuda")
    if torch.backends.mps.is_available():
        names.append("mps")
    return [*names, "cpu"]


def compute_dtype(device: str, options: RuntimeOptions) -> torch.dtype:
    """What products are computed in: as the options say; by itself bfloat16, float16 where the device lacks that."""
    if options.exact:
        return torch.float32
    if options.compute != "auto":
        return _DTYPES[options.compute]
    if device == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability() >= _AMPERE else torch.float16
    if device == "mps":
        return torch.bfloat16 if torch.backends.mps.is_macos_or_newer(*_MAC_WITH_BFLOAT16) else torch.float16
    return torch.bfloat16


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a device: `free` of `total`; None where nobody says."""

    free: int | None
    total: int | None

    def __str__(self) -> str:
        if self.total is None:
            return "its memory is not known"
        return f"{(self.free or 0) / 1e6:.0f} MB of {self.total / 1e6:.0f} MB are free"


def memory(device: torch.device) -> Memory:
    if device.type == "cuda":
        return Memory(*torch.cuda.mem_get_info())
    if device.type == "mps":
        most = torch.mps.recommended_max_memory()
        return Memory(most - torch.mps.driver_allocated_memory(), most)
    free = available_memory()
    return Memory(free, free)


def described(device: str) -> str:
    """A device and the version of torch: the hardware's own name where torch knows it."""
    name = torch.cuda.get_device_name() if device == "cuda" else device
    return f"{name}, torch {torch.__version__}, {torch.get_num_threads()} threads"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device, or the host, has no more memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = ("out of memory", "can't allocate memory", "not enough memory", "Invalid buffer size", "overflowed")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def release(device: torch.device) -> None:
    """Give back what nobody uses any more."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
