"""The ONNX Runtime backend: runs the bundle's ONNX graph with keys and values read and written in place.

The graph sees one array a sequence, so sequences have extents. Past and present share their memory. Rows of a ring that
never went round lie at their positions, so new rows land in their slots by themselves; afterwards they land in scratch
rows behind the extent, and are moved once the forward is through.
"""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge import onnx_interface, rope, texts
from edge.bundle import Bundle
from edge.cores import physical_cores, startable_threads
from edge.decoder import DecoderSpec
from edge.errors import BundleError, ClosedError, OptionError, UnsupportedError
from edge.kv import KvLayout, Move, RingPlan
from edge.lifecycle import compiled
from edge.onnx_interface import Value
from edge.options import RuntimeOptions
from edge.runtime import (
    Batch,
    Capabilities,
    KvRows,
    Segment,
    Support,
    check_finite,
    check_tap,
    pick_device,
    pick_kv_dtype,
)
from runtimes import spilled
from runtimes.buffers import KvPool

_NO_LOG = 4  # of ONNX Runtime's severities, beyond errors: fatal
_HIDDEN = np.float32(-1e9)  # finite, so that no row of scores is all minus infinity
Float = npt.NDArray[np.float32]


class OnnxRuntime:
    """A Runtime over one InferenceSession. A call waits for one that runs in another thread, closing too."""

    name = "onnx"
    capabilities = Capabilities(extents=True, batching=False, taps=("hidden",), storage=spilled.STORAGE)
    notes: tuple[str, ...] = ()

    def __init__(self, bundle: Bundle, layout: KvLayout, options: RuntimeOptions, device: str) -> None:
        self.spec = bundle.spec
        self.layout = layout
        self.kv_dtypes = ("float32",) * len(bundle.spec.layers)
        self.device = device
        self._lock = threading.RLock()
        self._session = _open_session(bundle, options)
        self._pool = KvPool(self.spec, layout)
        self._binding = self._session.io_binding()
        rows = max(ring.slots for ring in layout.rings) + layout.chunk
        chunk = layout.chunk
        self._tokens = np.zeros((1, chunk), np.int64)
        self._angle_rows = np.arange(chunk)
        self._rows = np.zeros(chunk, np.int64)
        self._angles = [np.zeros((2, rows, kind.dim // 2), np.float32) for kind in self.spec.ropes]
        self._totals = np.zeros((len(layout.rings), 2), np.int32)  # total, total - 1
        self._open_bias = np.zeros(chunk * rows, np.float32)  # never written, so its pages take no memory
        self._masked = [np.zeros(0, np.float32) for _ in layout.rings]
        self._logits = np.zeros((chunk, self.spec.vocab_size), np.float32)
        self._hidden = np.zeros((chunk, self.spec.hidden_size), np.float32)
        self._sequence = -1
        self._shape = (0, 0)  # new tokens and wanted rows that everything is bound for
        self._closed = False
        self._bind_constant()

    def forward(self, batch: Batch) -> list[Float]:
        check_tap(batch.tap, self)
        with compiled, self._lock:
            self._check_open()
            return [self._forward(segment, hidden=batch.tap == "hidden") for segment in batch.segments]

    def _forward(self, segment: Segment, *, hidden: bool) -> Float:
        count = len(segment.tokens)
        if count > self.layout.chunk:
            raise OptionError(f"{count} tokens in one forward; this runtime was opened for {self.layout.chunk}")
        # One row at least: a Reshape of the graph's products cannot tell the width of none.
        rows = max(1, segment.logit_rows)
        self._tokens[0, :count] = segment.tokens
        self._rows[:rows] = np.arange(count - rows, count)
        for angles, kind in zip(self._angles, self.spec.ropes, strict=True):
            cos, sin = rope.angles(kind, segment.plan.rings[0].positions, context=self.layout.context)
            angles[0, :count], angles[1, :count] = cos, sin
        self._bind_pool(segment.sequence)
        firsts = self._bind_step(segment, rows)
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:  # of types without a common root
            if not _is_of_memory(error):
                raise
            raise OptionError("not enough memory for so many tokens at once; choose a smaller chunk") from error
        found = self._hidden[:count] if hidden else self._logits[:rows]
        check_finite(found, self.name)
        for ring, (plan, first) in enumerate(zip(segment.plan.rings, firsts, strict=True)):
            self._pool.store(ring, plan.writes, segment.sequence, first)
        return (found if hidden else found[: segment.logit_rows]).copy()

    def _bind_constant(self) -> None:
        """Bind what stays at one address and shape for good."""
        for index, angles in enumerate(self._angles):
            for part, values in zip(("cos", "sin"), angles, strict=True):
                self._bind(f"rope.{index}.{part}", values, values.shape)
        for ring, totals in enumerate(self._totals):
            self._bind(f"ring.{ring}.total", totals[0:], ())
            self._bind(f"ring.{ring}.last", totals[1:], (1,))

    def _bind_pool(self, sequence: int) -> None:
        """Bind a sequence's keys and values as past and present alike."""
        if sequence == self._sequence:
            return
        self._sequence = -1  # until all are bound: an interrupt may come in between
        for layer, (ring, index) in enumerate(self._pool.layers):
            for part, values in zip(("key", "value"), self._pool.rings[ring][sequence, index], strict=True):
                shape = (1, *values.shape)
                self._bind(f"past.{layer}.{part}", values, shape)
                self._bind_output(f"present.{layer}.{part}", values, shape)
        self._sequence = sequence

    def _bind_step(self, segment: Segment, rows: int) -> list[int]:
        """Bind what depends on the step: in decoding the masks' shapes alone, since binding all takes far longer.

        Returns the row of each ring's extent from which on the graph puts the new ones.
        """
        count = len(segment.tokens)
        firsts = []
        for ring, plan in enumerate(segment.plan.rings):
            first, bias = self._past(segment, ring, plan)
            firsts.append(first)
            total = first + count
            self._totals[ring] = (total, total - 1)
            if bias is not self._open_bias:
                self._masked[ring] = bias  # keeps the memory alive while it is bound
            self._bind(f"ring.{ring}.bias", bias, (1, 1, count, total))
        if self._shape != (count, rows):
            self._shape = (0, 0)  # an interrupt may come in between
            self._bind("tokens", self._tokens, (1, count))
            self._bind("angle_rows", self._angle_rows, (1, count))
            self._bind("rows", self._rows, (rows,))
            self._bind_output("logits", self._logits, (1, rows, self.spec.vocab_size))
            self._bind_output("hidden", self._hidden, (1, count, self.spec.hidden_size))
            self._shape = (count, rows)
        return firsts

    def _past(self, segment: Segment, ring: int, plan: RingPlan) -> tuple[int, Float]:
        """How many rows of the extent come before the new ones, and the bias that says who sees whom."""
        slots = self.layout.rings[ring].slots
        base = segment.sequence * slots
        last = plan.start + plan.count - 1
        if len(plan.runs) == 1 and plan.runs[0, 0] == 0 and plan.runs[0, 1] == base and last < plan.window:
            return plan.start, self._open_bias  # rows lie at their positions, and each query sees all before it
        held, found = plan.unrolled()
        new = held >= plan.start
        writes = found[new] - base
        behind = int((found[~new] - base).max(initial=-1)) + 1
        # Where the new rows' slots follow those of all others, the graph itself puts them there.
        first = behind if np.array_equal(writes, np.arange(behind, behind + plan.count)) else slots
        positions = np.full(first + plan.count, -1, np.int64)
        positions[found[~new] - base] = held[~new]
        positions[first:] = held[new]
        return first, np.where(plan.mask(positions), np.float32(0), _HIDDEN)

    def _bind(self, name: str, values: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
        self._binding.bind_input(name, "cpu", 0, values.dtype.type, shape, values.ctypes.data)

    def _bind_output(self, name: str, values: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
        self._binding.bind_output(name, "cpu", 0, values.dtype.type, shape, values.ctypes.data)

    def move(self, move: Move) -> None:
        with self._lock:
            self._check_open()
            self._pool.move(move)

    def read_rows(self, layer: int, slots: npt.NDArray[np.int64]) -> KvRows:
        with self._lock:
            self._check_open()
            return KvRows(*self._pool.rows(layer, slots))

    def write_rows(self, layer: int, slots: npt.NDArray[np.int64], rows: KvRows) -> None:
        with self._lock:
            self._check_open()
            self._pool.put(layer, slots, rows.keys, rows.values)

    @property
    def kv_bytes(self) -> int:
        return self._pool.nbytes

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            del self._binding, self._session
            self._pool.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the onnx runtime is closed; load the model again")


def support() -> Support:
    if importlib.util.find_spec("onnxruntime") is None:
        return Support((), "the package onnxruntime is not installed: pip install onnxruntime")
    # CUDA's GroupQueryAttention takes neither float32 nor an attention bias, and nothing may fall back to the CPU.
    return Support(("cpu",), "cuda: ONNX Runtime's attention kernel for it takes no mask, which the KV ring needs")


def kept_kv(bundle: Bundle, options: RuntimeOptions) -> list[str]:
    return [pick_kv_dtype("onnx", options, ("float32",))] * len(bundle.spec.layers)


def open_model(bundle: Bundle, layout: KvLayout, options: RuntimeOptions) -> OnnxRuntime:
    kept_kv(bundle, options)
    return OnnxRuntime(bundle, layout, options, pick_device("onnx", options, support().devices))


def _open_session(bundle: Bundle, options: RuntimeOptions) -> Any:
    import onnxruntime

    graph = bundle.manifest.graphs.get("exact" if options.exact else "decoder")
    if graph is None or graph.kind != "onnx":
        raise UnsupportedError(f"{bundle.path}: holds no ONNX graph; export the model again with one")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = startable_threads(options.threads or physical_cores())
    settings.inter_op_num_threads = 1
    # Whatever goes wrong is raised; its log would repeat it on stderr, in colours also where that is a file.
    onnxruntime.set_default_logger_severity(_NO_LOG)
    settings.log_severity_level = _NO_LOG
    path = bundle.path / graph.file
    try:
        with compiled:
            # Its fallback would open the same graph a second time, and prints to stdout.
            session = onnxruntime.InferenceSession(
                _spelled(path), settings, providers=["CPUExecutionProvider"], enable_fallback=0
            )
    except Exception as error:  # onnxruntime raises a dozen types of its own, none with a common root
        if _is_of_memory(error):
            raise MemoryError(str(error)) from error
        raise BundleError(f"{path}: ONNX Runtime refuses it: {error}") from error
    _check_interface(path, session, bundle.spec)
    return session


def _spelled(path: Path) -> str:
    """The path as the UTF-8 that ONNX Runtime takes, whatever the locale. Raises BundleError for one that is none."""
    text = texts.decode_word(str(path))
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BundleError(f"{path}: the path is no UTF-8, which ONNX Runtime needs; rename or move it") from error
    return text


def _is_of_memory(error: Exception) -> bool:
    return any(words in str(error) for words in ("bad_alloc", "Failed to allocate memory", "allocate requested"))


def _check_interface(path: Path, session: Any, spec: DecoderSpec) -> None:
    """Raise BundleError for the first input or output that is not as the spec has it."""
    sides = ((session.get_inputs(), onnx_interface.inputs(spec)), (session.get_outputs(), onnx_interface.outputs(spec)))
    for values, expected in sides:
        found = {value.name: Value(value.type.removeprefix("tensor(").rstrip(")"), (*value.shape,)) for value in values}
        for name in [*expected, *found]:
            if found.get(name) != expected.get(name):
                there, needed = (table.get(name, "absent") for table in (found, expected))
                raise BundleError(
                    f"{path}: {name} is {there} in the graph and {needed} by the manifest's spec; "
                    "export the model again"
                )
