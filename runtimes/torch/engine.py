"""The Runtime over PyTorch: opens a model on a device, hands it batches, and guards its life."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edge.bundle import Bundle
from edge.cores import physical_cores
from edge.errors import ClosedError, OptionError
from edge.kv import KvLayout, Move
from edge.lifecycle import compiled
from edge.options import RuntimeOptions
from edge.runtime import Batch, Capabilities, KvRows, Segment, check_finite, check_tap
from runtimes.torch import devices, kernels, step
from runtimes.torch.codes import Workspace
from runtimes.torch.fixed import Decoder
from runtimes.torch.host_kv import HostPool
from runtimes.torch.kv import Pool
from runtimes.torch.loading import Loader
from runtimes.torch.program import Program
from runtimes.torch.state import State
from runtimes.torch.step import Step

Float = npt.NDArray[np.float32]
# Where decoding has fixed shapes and tokens are drawn on the device: a launch costs more than what is padded.
FIXED = ("cuda", "mps")
# Numbers of a matrix that are dequantized at a time: what the CPU's caches hold, and what fills a GPU.
_NUMBERS = {"cpu": 1 << 20, "mps": 1 << 24, "cuda": 1 << 26}


class TorchRuntime:
    """A Runtime over one device. A call waits for one that runs in another thread, closing too.

    `ways` says how products with each scheme are computed: scheme → way.
    """

    name = "torch"

    def __init__(self, program: Program, loader: Loader, pool: Pool, bundle: Bundle, layout: KvLayout) -> None:
        self.spec, self.layout = bundle.spec, layout
        self.device = loader.work.device.type
        on_device = self.device in FIXED
        self.capabilities = Capabilities(
            extents=False, batching=True, taps=("hidden",), sampling="torch" if on_device else None
        )
        self.dtype = loader.dtype
        self.kv_dtypes = tuple(str(keys.dtype).removeprefix("torch.") for keys in pool.keys)
        self._lock = threading.RLock()
        self._closed = self._inside = False
        self._program, self._device = program, loader.work.device
        self._pool: Pool | None = pool
        self._weights = loader.load(bundle.graph)
        self._work = loader.work
        self.ways = loader.ways
        self.notes = tuple(f"{scheme}: {way}" for scheme, way in self.ways.items())
        self.kv_bytes = pool.nbytes
        self._decoder: Decoder | None = None
        if on_device and pool.place == self._device:
            self._decoder = Decoder(self._computed, self.spec, layout, pool.scratch, self._device)

    def forward(self, batch: Batch) -> list[Float]:
        check_tap(batch.tap, self)
        for segment in batch.segments:
            if len(segment.tokens) > self.layout.chunk:
                raise OptionError(
                    f"{len(segment.tokens)} tokens in one forward; this runtime was opened for {self.layout.chunk}"
                )
            _check_tokens(segment.tokens, self.spec.vocab_size)
        hidden = batch.tap == "hidden"
        counts = [len(segment.tokens) if hidden else segment.logit_rows for segment in batch.segments]
        with self._using():
            found = self._run(batch.segments, hidden=hidden)
            if batch.on_device and not hidden:
                return list(torch.split(found, counts))  # type: ignore[arg-type]
            values = found.cpu().numpy()
        if len(values):
            check_finite(values, self.name)
        return np.split(values, np.cumsum(counts)[:-1])

    def _run(self, segments: Sequence[Segment], *, hidden: bool) -> Tensor:
        if self._decoder is not None and not hidden and self._decoder.takes(segments):
            return self._decoder.run(segments)
        assert self._pool is not None
        made = step.plan(self.spec, self.layout, segments, self._device, self._pool.place)
        return self._computed(made, hidden=hidden)

    def _computed(self, made: Step, *, hidden: bool = False) -> Tensor:
        assert self._pool is not None
        self._pool.begin(made)
        return self._program.run(State(self._weights, self._pool, made), hidden=hidden)

    def move(self, move: Move) -> None:
        with self._using() as pool:
            pool.move(move)

    def read_rows(self, layer: int, slots: npt.NDArray[np.int64]) -> KvRows:
        with self._using() as pool:
            return pool.rows(layer, slots)

    def write_rows(self, layer: int, slots: npt.NDArray[np.int64], rows: KvRows) -> None:
        with self._using() as pool:
            pool.put(layer, slots, rows)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._free()

    def _free(self) -> None:
        """Free everything, unless a call is under way, within which a handler closed it: it then does so."""
        if self._inside:
            return
        self._pool = self._decoder = None
        for name in ("_weights", "_work"):
            self.__dict__.pop(name, None)
        devices.release(self._device)

    @contextmanager
    def _using(self) -> Iterator[Pool]:
        """The pool, one call at a time. Raises ClosedError once it is closed, OptionError without memory."""
        with compiled, self._lock, torch.inference_mode():
            if self._closed:
                raise ClosedError("the torch runtime is closed; load the model again")
            assert self._pool is not None
            self._inside = True
            try:
                with _enough_memory(self._device, "so many tokens at once", "choose a smaller chunk", self._decoder):
                    yield self._pool
            finally:
                self._inside = False
                if self._closed:
                    self._free()


@contextmanager
def _enough_memory(
    device: torch.device, what: str, advice: str, decoder: Decoder | None = None
) -> Iterator[None]:  # fmt: skip
    """Make what torch says when memory runs out an OptionError that has the numbers."""
    try:
        yield
        return
    except (RuntimeError, MemoryError) as error:
        if not devices.is_out_of_memory(error):
            raise
        told = f"{device.type} has no memory for {what} ({devices.memory(device)}); {advice}"
    # Behind the error, which held what the call had allocated.
    if decoder is not None:
        decoder.forget()
    devices.release(device)
    raise OptionError(told)


def _check_tokens(tokens: npt.NDArray[np.int32], vocab: int) -> None:
    """Raise OptionError for one outside the vocabulary: a GPU would end the process."""
    wrong = tokens[(tokens < 0) | (tokens >= vocab)]
    if len(wrong):
        raise OptionError(f"token {wrong[0]} is outside the vocabulary of 0…{vocab - 1}")


def open_engine(
    bundle: Bundle, layout: KvLayout, options: RuntimeOptions, device_name: str, dtypes: Sequence[str]
) -> TorchRuntime:
    """Open a bundle. Raises OptionError where the device has no memory for it."""
    device = torch.device(device_name)
    if device.type == "cpu":
        torch.set_num_threads(options.threads or physical_cores())
    dtype = devices.compute_dtype(device_name, options)
    dense = torch.float16 if options.weights == "float16" else None
    kernel = None if dense or options.exact else kernels.find(device_name, dtype)
    work = Workspace(device, _NUMBERS[device_name])
    loader = Loader(bundle.weights, work, dtype, kernel, dense)
    program = Program(bundle.graph)
    size = bundle.weights.path.stat().st_size / 1e6
    what = f"weights of {size:.0f} MB and keys and values of {layout.sequences} sequences of {layout.context} tokens"
    advice = "choose a smaller context or fewer sequences, kv host, or a smaller model"
    if device.type == "mps":
        torch.mps.set_per_process_memory_fraction(1.0)  # of what the system recommends: beyond it, it would swap
    with torch.inference_mode(), _enough_memory(device, what, advice):
        kind = HostPool if options.kv == "host" else Pool
        pool = kind(bundle.spec, layout, tuple(getattr(torch, name) for name in dtypes), device)
        return TorchRuntime(program, loader, pool, bundle, layout)
