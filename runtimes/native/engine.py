"""The Runtime over the C++ engine: loads weights into it, hands it tokens and rings, guards its life."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, assert_never

import numpy as np
import numpy.typing as npt

from edge import rope
from edge.bundle import Bundle
from edge.cores import physical_cores
from edge.errors import BundleError, ClosedError, InternalError, NumericsError, OptionError
from edge.kv import KvLayout, Move, StepPlan
from edge.layers import Attention, Gqa, Mla
from edge.lifecycle import compiled
from edge.options import RuntimeOptions
from edge.runtime import Batch, Capabilities, KvRows, Segment, check_finite, check_tap, pick_kv_dtype
from runtimes import spilled
from runtimes.kv_dtypes import kv_dtypes
from runtimes.native import precision
from runtimes.native.builder import build
from runtimes.native.loading import load
from runtimes.native.program import KV_DTYPES, Program

if TYPE_CHECKING:
    from runtimes.native._native import Engine

Float = npt.NDArray[np.float32]
Longs = npt.NDArray[np.int64]


class NativeRuntime:
    """A Runtime over one engine. A call waits for one that runs in another thread, closing too.

    Closed from within a call (by a signal handler), it lets that one finish.
    """

    name = "native"
    device = "cpu"
    capabilities = Capabilities(extents=False, batching=True, taps=("hidden",), attention=True, storage=spilled.STORAGE)
    notes: tuple[str, ...] = ()

    def __init__(self, bundle: Bundle, layout: KvLayout, options: RuntimeOptions, kernels: str) -> None:
        self.spec = bundle.spec
        self.layout = layout
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._angles = rope.AngleTable(self.spec.ropes, context=layout.context)
        weights = bundle.weights
        asked = precision.read(bundle.manifest.precision)
        self._program = build(bundle.graph, weights.runs, exact=options.exact, precision=asked)
        threads = options.threads or physical_cores()
        self._engine: Engine | None = _make_engine(self._program, bundle, layout, options, kernels, threads)
        self.kv_bytes = self._engine.kv_bytes
        self.kv_dtypes = tuple(kv_dtypes(bundle, wanted_kv(bundle, options)))
        load(self._engine, self._program, weights, threads)

    def forward(self, batch: Batch) -> list[Float]:
        check_tap(batch.tap, self)
        segments = batch.segments
        if not segments or any(len(segment.plan.rings) != len(self.layout.rings) for segment in segments):
            raise InternalError("the native engine was called wrongly: segments with runs of each ring are needed")
        for segment in segments:
            if len(segment.tokens) > self.layout.chunk:
                raise OptionError(
                    f"{len(segment.tokens)} tokens in one forward; this runtime was opened for {self.layout.chunk}"
                )
        with _enough_memory:
            return self._forward(segments, hidden=batch.tap == "hidden")

    def _forward(self, segments: Sequence[Segment], *, hidden: bool) -> list[Float]:
        tokens = _tokens(segments, self.spec.vocab_size)
        plans = [segment.plan for segment in segments]
        rows = np.array([_row(plan) for plan in plans], np.int64)
        attention = [
            (index, number, ring.attention)
            for index, plan in enumerate(plans)
            for number, ring in enumerate(plan.rings)
            if ring.attention is not None
        ]
        runs = [[ring.runs for ring in plan.rings] for plan in plans]
        # Hidden states, too, are of wanted rows alone.
        counts = [plan.count if hidden else segment.logit_rows for plan, segment in zip(plans, segments, strict=True)]
        ends = accumulate(plan.count for plan in plans)
        wanted = np.array([row for end, n in zip(ends, counts, strict=True) for row in range(end - n, end)], np.int64)
        logits = np.empty((len(wanted), self.spec.vocab_size), np.float32)
        states = np.empty((len(tokens) if hidden else 0, self.spec.hidden_size), np.float32)
        angles = self._angles_of(segments)

        def run(engine: Engine) -> None:
            engine.forward(tokens, rows, runs, angles, wanted, logits, attention)
            if hidden:
                engine.read(self._program.hidden, states)

        self._use(run)
        if len(logits):
            check_finite(logits, self.name)
        found = states if hidden else logits
        return [found[end - n : end] for end, n in zip(accumulate(counts), counts, strict=True)]

    def _angles_of(self, segments: Sequence[Segment]) -> list[rope.Angles]:
        """cos and sin of every new row, for each rope."""
        first = segments[0].plan
        if len(segments) == 1 and first.count == 1:
            return self._angles.row(first.start)
        positions = np.concatenate([segment.plan.rings[0].positions for segment in segments])
        return [rope.angles(kind, positions, context=self.layout.context) for kind in self.spec.ropes]

    def move(self, move: Move) -> None:
        rotated: list[tuple[int, list[float], list[float]]] = []
        for index, (layer, group) in enumerate(zip(self.spec.layers, self.spec.layer_groups, strict=True)):
            kind = layer.attention.rope
            if move.shift == 0 or group != move.ring or kind is None:
                continue
            shift = np.array([move.shift], np.int64)
            cos, sin = rope.rotations(self.spec.ropes[kind], shift, context=self.layout.context)
            rotated.append((index, cos[0].tolist(), sin[0].tolist()))

        def run(engine: Engine) -> None:
            engine.copy_rows(move.ring, move.source, move.target, move.count)
            for layer, cos, sin in rotated:
                engine.rotate_rows(layer, move.source, move.target, move.count, cos, sin)

        self._use(run)

    def read_rows(self, layer: int, slots: Longs) -> KvRows:
        heads, key_dim, value_dim = _kept(self.spec.layers[layer].attention).values()
        halves = self.kv_dtypes[layer] == "float16"
        dtype = np.uint16 if halves else np.float32
        keys, values = (np.empty((len(slots), heads, dim), dtype) for dim in (key_dim, value_dim))
        self._use(lambda engine: engine.read_rows(layer, slots.tolist(), keys, values))
        return KvRows(keys.view(np.float16), values.view(np.float16)) if halves else KvRows(keys, values)

    def write_rows(self, layer: int, slots: Longs, rows: KvRows) -> None:
        halves = self.kv_dtypes[layer] == "float16" and rows.keys.dtype == np.float16
        keys, values = (
            np.ascontiguousarray(part).view(np.uint16) if halves else np.ascontiguousarray(part, np.float32)
            for part in (rows.keys, rows.values)
        )
        self._use(lambda engine: engine.write_rows(layer, slots.tolist(), keys, values))

    def close(self) -> None:
        if os.getpid() != self._process:  # another thread may have held the lock when the process was copied
            return
        with self._lock:
            self._engine = None

    def _use(self, call: Callable[[Engine], None]) -> None:
        """Run `call` on the engine, one call at a time.

        `call` holds calls of the engine and nothing else: a ValueError of any other code is not the engine's refusal.

        Raises ClosedError once it is closed and in a forked process, OptionError without memory, NumericsError for
        keys that cannot be kept, InternalError for what the engine refuses.
        """
        if os.getpid() != self._process:
            raise ClosedError("the native runtime was opened before this process was forked; load the model again here")
        with compiled, self._lock, _enough_memory:
            if self._engine is None:
                raise ClosedError("the native runtime is closed; load the model again")
            try:
                call(self._engine)
            except OverflowError as error:
                raise NumericsError(f"the native engine: {error}") from error
            except (ValueError, TypeError) as error:
                raise InternalError(f"the native engine was called wrongly: {error}") from error


class _EnoughMemory:
    """A context manager that says what to do where memory runs out. A class, as it is entered for each token."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, MemoryError):
            raise OptionError("not enough memory for so many tokens at once; choose a smaller chunk") from error


_enough_memory = _EnoughMemory()


def _row(plan: StepPlan) -> list[int]:
    """Of a segment what the engine's table of them has: count, first position, window and sinks of each ring."""
    row = [plan.count, plan.start]
    for ring in plan.rings:
        row += (ring.window, ring.sinks)
    return row


def _tokens(segments: Sequence[Segment], vocab_size: int) -> npt.NDArray[np.int32]:
    """The tokens of all segments. Raises OptionError for one outside the vocabulary, before a cast could wrap it."""
    tokens = segments[0].tokens if len(segments) == 1 else np.concatenate([segment.tokens for segment in segments])
    for token in tokens.tolist():
        if not 0 <= token < vocab_size:
            raise OptionError(f"token {token} is outside the vocabulary of 0…{vocab_size - 1}")
    return tokens.astype(np.int32, copy=False)


def wanted_kv(bundle: Bundle, options: RuntimeOptions) -> str:
    """How keys and values are to be kept: as the caller says, or else as the manifest does; a layer may need it wider.

    Raises UnsupportedError.
    """
    wanted = pick_kv_dtype("native", options, KV_DTYPES if options.exact else KV_DTYPES[1:])
    if options.kv_dtype == "auto" and not options.exact:
        return precision.read(bundle.manifest.precision).get(precision.KV, wanted)
    return wanted


def _make_engine(
    program: Program, bundle: Bundle, layout: KvLayout, options: RuntimeOptions, kernels: str, threads: int
) -> Engine:
    """The C++ engine with its program and no weights yet. Raises BundleError for what it refuses."""
    from runtimes.native import _native

    vectors = [bundle.weights.read(vector.name) + np.float32(vector.offset) for vector in program.vectors]
    wanted = wanted_kv(bundle, options)
    tables = {**program.tables(), **_kv_tables(bundle, layout, wanted)}
    try:
        if layout.storage == "memory":
            return _native.Engine(tables, vectors, kernels, threads)
        with spilled.unnamed_file() as file:
            engine = _native.Engine(tables, vectors, kernels, threads, file.fileno())
            spilled.take_space(file, engine.kv_bytes)
            return engine
    except ValueError as error:
        raise BundleError(f"{bundle.path}: the native engine refuses it: {error}") from error
    except MemoryError as error:
        raise OptionError("not enough memory for the model and a context this large; choose a smaller one") from error


def _kv_tables(bundle: Bundle, layout: KvLayout, wanted: str) -> dict[str, Any]:
    """Ropes, and what is kept of each token: the tables of program.def that do not follow from the Graph."""
    spec = bundle.spec
    dtypes = kv_dtypes(bundle, wanted)
    return {
        "ropes": [{"pairs": kind.dim // 2} for kind in spec.ropes],
        "rings": [{"slots": ring.slots * layout.sequences, "window": ring.window} for ring in layout.rings],
        "layers": [
            {"ring": group, "format": dtype, **_kept(layer.attention)}
            for layer, group, dtype in zip(spec.layers, spec.layer_groups, dtypes, strict=True)
        ],
    }


def _kept(attention: Attention) -> dict[str, int]:
    """What a layer keeps of a token: latent attention's rotated key as a key, and the latent as its value."""
    match attention:
        case Gqa():
            return {"kv_heads": attention.kv_heads, "key_dim": attention.head_dim, "value_dim": attention.head_dim}
        case Mla():
            return {"kv_heads": 1, "key_dim": attention.rope_dim, "value_dim": attention.latent_dim}
    assert_never(attention)
