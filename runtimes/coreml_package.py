"""A Runtime over the functions of a Core ML package, whoever executes them: the host's side of it.

Keys and values lie in one pool a group. A function takes the past as an array of its own, so the rows that the new
tokens see are gathered for it, in any order; what comes out is written to the slots that the plan names. Tokens go
through in portions of as many as the function takes, each of which sees the rows of those before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edge import coreml_interface, rope
from edge.bundle import Bundle
from edge.coreml_interface import HIDDEN, Function
from edge.errors import ClosedError, OptionError
from edge.kv import KvLayout, Move, RingPlan
from edge.layers import Mla
from edge.runtime import Batch, Capabilities, KvRows, Segment, check_finite, check_tap
from runtimes.buffers import rotate

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float32]
# The outputs of a function by its name and inputs.
Execute = Callable[[Function, Mapping[str, Array]], Mapping[str, Array]]


def choose_context(bundle: Bundle, layout: KvLayout, contexts: tuple[int, ...]) -> int:
    """The shortest context of a package in which all that a query sees has room. Raises OptionError without one."""
    for context in contexts:
        function = Function("score", context)
        groups = zip(layout.rings, bundle.spec.kv_groups, strict=True)
        if all(ring.window - 1 + ring.sinks <= function.slots(kv.window) for ring, kv in groups):
            return context
    raise OptionError(
        f"a context of {layout.context}, and {bundle.path} has Core ML functions for {', '.join(map(str, contexts))}: "
        "choose less, or export with --contexts"
    )


class PackageRuntime:
    """One sequence after another through the functions of one context. `dtype` is how keys and values are kept."""

    capabilities = Capabilities(extents=False, batching=False, taps=("hidden",))
    notes: tuple[str, ...] = ()

    def __init__(self, name: str, device: str, bundle: Bundle, layout: KvLayout, dtype: Any) -> None:
        """Raises MemoryError for more than the system gives."""
        self.name, self.device = name, device
        self.spec, self.layout = bundle.spec, layout
        self.kv_dtypes = (np.dtype(dtype).name,) * len(bundle.spec.layers)
        self._lock = threading.RLock()
        self._execute: Execute | None = None
        self._context = 0
        self._pools: dict[str, Array] = {}
        for group, (kv, ring) in enumerate(zip(self.spec.kv_groups, layout.rings, strict=True)):
            for part, dim in (("k", kv.key_dim), ("v", kv.value_dim)):
                if dim:
                    slots = layout.sequences * ring.slots
                    shape = (self.spec.layer_groups.count(group), kv.kv_heads, slots, dim)
                    self._pools[f"{part}_{group}"] = np.zeros(shape, dtype)  # committed as it is touched

    def bind(self, execute: Execute, context: int) -> None:
        """Give what executes the functions, and the context of those to use."""
        self._execute, self._context = execute, context

    def forward(self, batch: Batch) -> list[Float]:
        check_tap(batch.tap, self)
        with self._lock:
            execute = self._opened()
            return [self._forward(execute, segment, hidden=batch.tap == "hidden") for segment in batch.segments]

    def _forward(self, execute: Execute, segment: Segment, *, hidden: bool) -> Float:
        count = len(segment.tokens)
        if count > self.layout.chunk:
            raise OptionError(f"{count} tokens in one forward; this runtime was opened for {self.layout.chunk}")
        first = 0 if hidden else count - segment.logit_rows  # the first token of which something is wanted
        found, start = [], 0
        while start < count:
            wanted = max(first - start, 0)
            function = self._function(count - start, wanted, hidden=hidden)
            stop = min(count, start + function.rows)
            made = execute(function, self._inputs(function, segment, start, stop))
            result = made["hidden" if hidden else "logits"]
            if function.kind == "score":
                found.append(result[wanted : stop - start])
            elif stop == count and first < count:
                found.append(result)
            self._keep(segment, made, start, stop)
            start = stop
        width = self.spec.hidden_size if hidden else self.spec.vocab_size
        whole = np.concatenate([np.zeros((0, width), np.float32), *found]).astype(np.float32, copy=False)
        if len(whole):
            check_finite(whole, self.name)
        return whole

    def _function(self, left: int, unwanted: int, *, hidden: bool) -> Function:
        """For `left` tokens, of the first of which nothing is wanted: the cheapest that gives what is."""
        if left == 1 and not hidden:
            return Function("decode", self._context)
        score, prefill = Function("score", self._context), Function("prefill", self._context)
        if unwanted >= min(left, score.rows):
            return prefill
        return prefill if unwanted == left - 1 and not hidden else score

    def _inputs(self, function: Function, segment: Segment, start: int, stop: int) -> dict[str, Array]:
        """Inputs for the tokens start…stop of a segment."""
        rows, count = function.rows, stop - start
        tokens = np.zeros(rows, np.int32)
        tokens[:count] = segment.tokens[start:stop]
        given: dict[str, Array] = {"tokens": tokens}
        if function.kind == "prefill":
            given["last"] = np.array([count - 1], np.int32)
        positions = segment.plan.rings[0].start + start + np.arange(rows, dtype=np.int64)
        for index, kind in enumerate(self.spec.ropes):
            cos, sin = rope.angles(kind, positions, context=self.layout.context)
            given[f"cos_{index}"], given[f"sin_{index}"] = cos, sin
        wanted = coreml_interface.inputs(self.spec, function)
        for group, plan in enumerate(segment.plan.rings):
            mask, slots = _seen(plan, start, stop)
            room = wanted[f"mask_{group}"].shape
            given[f"mask_{group}"] = np.full(room, HIDDEN, np.float16)
            given[f"mask_{group}"][:count, : len(slots)] = np.where(mask, np.float16(0), np.float16(HIDDEN))
            for part in "kv":
                name = f"past_{part}_{group}"
                if name in wanted:
                    pool = self._pools[f"{part}_{group}"]
                    given[name] = np.zeros(wanted[name].shape, pool.dtype)
                    np.take(pool, slots, axis=2, out=given[name][:, :, : len(slots)], mode="clip")
        return given

    def _keep(self, segment: Segment, made: Mapping[str, Array], start: int, stop: int) -> None:
        """Write new rows to their slots."""
        for group, plan in enumerate(segment.plan.rings):
            slots = plan.writes[start:stop]
            for part in "kv":
                if f"new_{part}_{group}" in made:
                    self._pools[f"{part}_{group}"][:, :, slots] = made[f"new_{part}_{group}"][:, :, : stop - start]

    def move(self, move: Move) -> None:
        with self._lock:
            self._opened()
            rows = slice(move.source, move.source + move.count), slice(move.target, move.target + move.count)
            for part in "kv":
                pool = self._pools.get(f"{part}_{move.ring}")
                if pool is None:
                    continue
                copied = pool[:, :, rows[0]].copy()
                if move.shift and part == "k":
                    self._turn(copied, move)
                pool[:, :, rows[1]] = copied

    def _turn(self, keys: Array, move: Move) -> None:
        """Rotate the keys of a group's layers, [layers, kv_heads, count, key_dim], in place."""
        members = [layer for layer, group in enumerate(self.spec.layer_groups) if group == move.ring]
        kv = self.spec.kv_groups[move.ring]
        for index, layer in enumerate(members):
            kind = self.spec.layers[layer].attention.rope
            if kind is not None:
                spec = self.spec.ropes[kind]
                first = kv.key_dim - spec.dim if kv.kind == "latent" else 0  # a latent comes before its key
                rotate(keys[index, ..., first:], spec, move.shift, self.layout.context)

    def read_rows(self, layer: int, slots: npt.NDArray[np.int64]) -> KvRows:
        with self._lock:
            self._opened()
            keys, values = self._kept(layer)
            return KvRows(*(part[:, slots].swapaxes(0, 1).astype(np.float32) for part in (keys, values)))

    def write_rows(self, layer: int, slots: npt.NDArray[np.int64], rows: KvRows) -> None:
        with self._lock:
            self._opened()
            for part, values in zip(self._kept(layer), (rows.keys, rows.values), strict=True):
                part[:, slots] = values.swapaxes(0, 1)

    def _kept(self, layer: int) -> tuple[Array, Array]:
        """Views of a layer's keys and values, [kv_heads, slots, dim]; of latents, the rotated keys and the latents."""
        group = self.spec.layer_groups[layer]
        index = self.spec.layer_groups[:layer].count(group)
        keys = self._pools[f"k_{group}"][index]
        attention = self.spec.layers[layer].attention
        if isinstance(attention, Mla):
            return keys[..., attention.latent_dim :], keys[..., : attention.latent_dim]
        return keys, self._pools[f"v_{group}"][index]

    @property
    def kv_bytes(self) -> int:
        return sum(pool.nbytes for pool in self._pools.values())

    def close(self) -> None:
        with self._lock:
            self._execute = None
            self._pools.clear()

    def _opened(self) -> Execute:
        if self._execute is None:
            raise ClosedError(f"the {self.name} runtime is closed; load the model again")
        return self._execute


def _seen(plan: RingPlan, start: int, stop: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """The slots that new tokens start…stop see of what lies before them, and who sees which, [stop - start, slots]."""
    held, slots = plan.unrolled()
    mask = plan.mask(held)[start:stop] & (held < plan.start + start)
    some = mask.any(axis=0)
    return mask[:, some], slots[some]
