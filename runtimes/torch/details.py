"""What `dsedge doctor` says of this backend's devices: what each computes in, and kernels, tried on random codes."""

from __future__ import annotations

import torch

from edge.errors import EdgeError
from edge.options import RuntimeOptions
from edge.payload import parse_scheme
from runtimes.torch import devices, kernels
from runtimes.torch.codes import Codes, Workspace

_SCHEMES = ("int4-g32-sym", "int8-g32-sym")
_ROWS, _COLUMNS = 256, 512


def describe(names: tuple[str, ...]) -> list[str]:
    """A line a device."""
    with torch.inference_mode():
        return [f"{name}: {_line(name)}" for name in names]


def _line(name: str) -> str:
    device = torch.device(name)
    dtype = devices.compute_dtype(name, RuntimeOptions())
    told = str(dtype).removeprefix("torch.")
    kernel = kernels.find(name, dtype)
    if kernel is None:
        return f"{devices.described(name)}; products in {told}, weights dequantized per layer; {devices.memory(device)}"
    work = Workspace(device, 1 << 20)
    tried = ", ".join(f"{scheme} {_tried(kernel, scheme, dtype, work)}" for scheme in _SCHEMES)
    return (
        f"{devices.described(name)}; products in {told}; kernel {kernel.name}: {tried} (beyond "
        f"{kernels.TOLERANCE:g}, weights are dequantized per layer); {devices.memory(device)}"
    )


def _tried(kernel: kernels.Kernel, name: str, dtype: torch.dtype, work: Workspace) -> str:
    """How far the kernel's products are from those with dequantized weights, or why it does not run."""
    scheme = parse_scheme(name)
    assert scheme is not None
    random = torch.Generator().manual_seed(0)
    shape = _ROWS, scheme.groups(_COLUMNS) * scheme.group * scheme.bits // 8
    codes = torch.randint(0, 256, shape, dtype=torch.uint8, generator=random).to(work.device)
    scales = torch.randn(_ROWS, scheme.groups(_COLUMNS), generator=random).half().to(work.device)
    made = Codes(scheme, _COLUMNS, codes, scales, None)
    try:
        return (
            f"off by {kernels.error(kernels.pack(kernel, scheme, (_ROWS, _COLUMNS), [made], dtype, work), [made]):.2g}"
        )
    except (RuntimeError, EdgeError) as error:
        return f"does not run ({str(error).splitlines()[0]})"
