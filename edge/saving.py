"""Sequences in files: a conversation goes on where it was, in another process and on another runtime.

The file is one of safetensors, which any reader of that format opens:

    session       U8    the description below, as JSON
    tokens        I32   [length]
    positions.R   I64   [rows]  what ring R holds, ascending; R counts `DecoderSpec.kv_groups`
    keys.L        F32 or F16  [rows, kv_heads, key_dim]  of layer L, after rope, in the order of its ring's positions
    values.L      the same, [rows, kv_heads, value_dim]
    sum           U8    [32]  SHA-256 of all bytes before it

F16 is for layers that are kept as float16, so that nothing is lost; F32 holds all others exactly, int8 ones too. The
description has `format`, `bundle` (the SHA-256 of the manifest), `runtime`, `context`, `policy`, `sinks`, `windows`,
`firsts` (each ring's first block), and `note`, which is the caller's. An answer's draws follow from its seed and begin
anew with it, so no sampler is kept.

Written beside its place and renamed: a crash leaves the old file. The runtime and dtype that wrote it have the very
same rows again; elsewhere they are rounded as that backend keeps them (`Saved.exact` says so).
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge import rope, seal, texts
from edge.bundle import Bundle
from edge.errors import FormatError, OptionError, StorageError
from edge.kv import KvLayout, Pools, policies
from edge.runtime import KvRows, Runtime
from edge.safetensors import PADDING, TensorInfo, plan_header, read_header
from edge.session import Session

FORMAT = 1
_DTYPES = {"F32": np.float32, "F16": np.float16, "I32": np.int32, "I64": np.int64, "F64": np.float64, "U8": np.uint8}
_FLOATS = (np.float32, np.float16)
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Saved:
    """A sequence that was loaded. `exact`: its rows are those that were written, unrounded. `note` is the caller's."""

    session: Session
    exact: bool
    note: Any


def save(path: Path, bundle: Bundle, session: Session, note: Any = None) -> int:
    """Write a sequence; the file's size. `note` is any JSON. Raises StorageError, with the old file as it was."""
    tensors = _tensors(bundle, session, note)
    header, infos = plan_header([(name, info.dtype, info.shape) for name, (info, _) in tensors.items()])
    partial = path.with_name(f".writing-{secrets.token_hex(8)}")
    try:
        handle = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            with os.fdopen(handle, "wb", buffering=0) as file:
                total = hashlib.sha256()
                for piece in _pieces(header, infos, tensors):
                    total.update(piece)
                    file.write(piece)
                file.write(total.digest())
                os.fsync(handle)
            os.replace(partial, path)
        except BaseException:
            os.unlink(partial)
            raise
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from error
    return infos["sum"].stop


def _tensors(bundle: Bundle, session: Session, note: Any) -> dict[str, tuple[TensorInfo, Array | None]]:
    """What goes into a file, in order; the sum has no data yet. Layers are read when their turn comes."""
    runtime, cache = session.runtime, session.cache
    described = {
        "format": FORMAT,
        "bundle": bundle_sum(bundle),
        "runtime": runtime.name,
        "context": runtime.layout.context,
        **_geometry(runtime.layout),
        "pinned": cache.pinned,
        "firsts": [ring.table.first for ring in cache.rings],
        "note": note,
    }
    found: dict[str, Array] = {
        "session": np.frombuffer(json.dumps(described).encode(), np.uint8),
        "tokens": np.array(session.tokens, np.int32),
    }
    held = [ring.rows(cache.length) for ring in cache.rings]
    for index, (ring, (positions, _)) in enumerate(zip(cache.rings, held, strict=True)):
        found[f"positions.{index}"] = positions
        found.update({f"{name}.{index}": array for name, array in ring.state().items()})
    for layer, group in enumerate(runtime.spec.layer_groups):
        rows = runtime.read_rows(layer, held[group][1])
        dtype = np.float16 if runtime.kv_dtypes[layer] == "float16" else np.float32
        found[f"keys.{layer}"] = rows.keys.astype(dtype, copy=False)
        found[f"values.{layer}"] = rows.values.astype(dtype, copy=False)
    names = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
    tensors: dict[str, tuple[TensorInfo, Array | None]] = {
        name: (TensorInfo(names[array.dtype], array.shape, 0, 0), array) for name, array in found.items()
    }
    tensors["sum"] = (TensorInfo("U8", (32,), 0, 0), None)
    return tensors


def _pieces(
    header: bytes, infos: dict[str, TensorInfo], tensors: dict[str, tuple[TensorInfo, Array | None]]
) -> Iterator[memoryview]:
    """The bytes of a file before its sum."""
    yield memoryview(header)
    for name, info in infos.items():
        if name.startswith(PADDING):
            yield memoryview(bytes(info.stop - info.start))
        elif name != "sum":
            array = tensors[name][1]
            assert array is not None
            if array.size:
                yield np.ascontiguousarray(array).data.cast("B")


def bundle_sum(bundle: Bundle) -> str:
    """The SHA-256 of a bundle's manifest, which vouches for every file of it."""
    return hashlib.sha256(seal.seal(bundle.manifest.to_json()).encode()).hexdigest()


def load(path: Path, bundle: Bundle, runtime: Runtime, pools: Pools) -> Saved:
    """Read a sequence.

    Raises FormatError for a file that is damaged, or is no such file; OptionError for one of another bundle, context or
    policy; PromptTooLongError, PoolFullError where there is no room.
    """
    file = _File(path)
    described = file.description
    _check_origin(path, described, bundle, runtime)
    tokens = file.read("tokens")
    vocab = runtime.spec.vocab_size
    if tokens.ndim != 1 or (len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab):
        raise FormatError(f"{path}: holds tokens that the model has not")
    pinned = described["pinned"]
    if not isinstance(pinned, int) or not 0 <= pinned <= 2**31:
        raise FormatError(f"{path}: has {pinned!r} pinned tokens")
    session = Session(runtime, pools, pinned=pinned)
    try:
        session.cache.check(len(tokens))
        session.restore(tokens.tolist(), file.rings())
        exact = _read_rows(file, session)
    except (ValueError, TypeError, KeyError) as error:
        session.close()
        raise FormatError(f"{path}: its rows are not those of its tokens ({error})") from error
    except BaseException:
        session.close()
        raise
    return Saved(session, exact and described["runtime"] == runtime.name, described["note"])


def _geometry(layout: KvLayout) -> dict[str, Any]:
    """What has to be the same where a sequence goes on."""
    return {
        "policy": layout.policy,
        "sinks": [ring.sinks for ring in layout.rings],
        "windows": [ring.window if ring.bounded else None for ring in layout.rings],
        **policies.find(layout.policy).geometry(layout),
    }


def _read_rows(file: _File, session: Session) -> bool:
    """Put the rows of a file into the sequence's slots; whether each layer keeps them as they were kept."""
    runtime, exact = session.runtime, True
    held = [ring.rows(session.cache.length) for ring in session.cache.rings]
    for index, (positions, _) in enumerate(held):
        if not np.array_equal(file.read(f"positions.{index}"), positions):
            raise ValueError(f"positions of ring {index}")
    for layer, group in enumerate(runtime.spec.layer_groups):
        slots = held[group][1]
        keys, values = (file.read(f"{name}.{layer}") for name in ("keys", "values"))
        exact = exact and (keys.dtype == np.float16) == (runtime.kv_dtypes[layer] == "float16")
        for rows in (keys, values):
            if rows.ndim != 3 or len(rows) != len(slots) or rows.dtype not in _FLOATS or not _finite(rows):
                raise ValueError(f"rows of layer {layer}")
        shapes = runtime.read_rows(layer, slots[:0])
        if (keys.shape[1:], values.shape[1:]) != (shapes.keys.shape[1:], shapes.values.shape[1:]):
            raise ValueError(f"rows of layer {layer}")
        halves = runtime.kv_dtypes[layer] == "float16" and keys.dtype == values.dtype == np.float16
        runtime.write_rows(
            layer, slots, KvRows(*(part if halves else part.astype(np.float32) for part in (keys, values)))
        )
    return exact


def _finite(rows: Array) -> bool:
    if rows.dtype == np.float16:  # by its bits: numpy would make a float32 of each
        return not ((rows.view(np.uint16) & 0x7C00) == 0x7C00).any()
    return bool(np.isfinite(rows).all())


def _check_origin(path: Path, described: dict[str, Any], bundle: Bundle, runtime: Runtime) -> None:
    """Raise OptionError, by name, for what keeps a sequence from going on here."""
    layout = runtime.layout
    if described["bundle"] != bundle_sum(bundle):
        raise OptionError(f"{path}: is a session of another bundle than {bundle.path}; open it with its own")
    for name, value in _geometry(layout).items():
        if described.get(name) != value:
            raise OptionError(f"{path}: has {name} {described.get(name)}, and here it is {value}; open the model alike")
    far = np.array([1, 1000], np.int64)
    for kind in bundle.spec.ropes:
        then, now = (rope.rotations(kind, far, context=context) for context in (described["context"], layout.context))
        if not np.array_equal(then[0], now[0]):
            raise OptionError(
                f"{path}: was made for a context of {described['context']}, by which this model's angles go, and here "
                f"it is {layout.context}; open the model alike"
            )


class _File:
    """A file whose sum is right, and its description. Raises FormatError for another one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._infos = read_header(path)
        self._bytes = np.fromfile(path, np.uint8)
        total = self._infos.get("sum")
        if total is None or total.stop - total.start != 32 or total.stop != len(self._bytes):
            raise FormatError(f"{path}: holds no session")
        if hashlib.sha256(self._bytes.data[: total.start]).digest() != self._bytes[total.start :].tobytes():
            raise FormatError(f"{path}: its SHA-256 is not that of its bytes; it was changed or damaged")
        try:
            self.description = texts.parse_json(self.read("session").tobytes())
            if self.description["format"] != FORMAT:
                raise FormatError(f"{path}: has the format {self.description['format']!r}; known is {FORMAT}")
            self.description = {**dict.fromkeys(_FIELDS), "pinned": 0, **self.description}
        except (ValueError, TypeError, KeyError) as error:
            raise FormatError(f"{path}: its description is none ({error})") from error

    def read(self, name: str) -> Array:
        info = self._infos.get(name)
        if info is None or info.dtype not in _DTYPES:
            raise FormatError(f"{self.path}: lacks {name}, or has it in another type")
        return self._bytes[info.start : info.stop].view(_DTYPES[info.dtype]).reshape(info.shape)

    def rings(self) -> list[tuple[int, Array, dict[str, Array]]]:
        """Of each ring its first block, positions, and what else is known of it. Raises ValueError, TypeError."""
        names = [name.rpartition(".") for name in self._infos if name.count(".") == 1 and not name.startswith(PADDING)]
        found = []
        for index, first in enumerate(self.description["firsts"]):
            own = [name for name, _, number in names if number == str(index) and name not in _LAYER]
            state = {name: self.read(f"{name}.{index}") for name in own}
            found.append((int(first), state.pop("positions"), state))
        return found


_LAYER = ("keys", "values")  # tensors that are numbered by layers
_FIELDS = ("bundle", "runtime", "context", "policy", "sinks", "windows", "firsts", "note")
