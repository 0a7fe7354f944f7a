"""RoPE and attention in MIL: over the past, which comes in, and the new rows, which go out.

Past and new keys are multiplied apart and their scores put side by side, so that no key is copied. q is multiplied by
the scale before the product, which then is the score itself and nothing larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edge.coreml_interface import HIDDEN
from edge.ops import Attention, LatentAttention, Op, Rope
from exporters.emit.coreml.linears import numbers, softcap
from exporters.emit.coreml.scope import Float
from exporters.ranges import scores_of

if TYPE_CHECKING:
    from exporters.emit.coreml.program import FunctionBuilder

_WIDE_HIDDEN = 1e4  # what HIDDEN is multiplied by where scores are float32


@dataclass(frozen=True, slots=True)
class _Rows:
    """Keys or values of a layer: of the past [kv_heads, slots, dim], and the new ones [kv_heads, rows, dim]."""

    past: Any
    new: Any


def rotate(build: FunctionBuilder, op: Op[Rope]) -> None:
    """Rotate pair (i, i + rotary/2) of each head by the angle of its row."""
    attrs, scope, path = op.attrs, build.scope, op.output
    x = scope.take(op.inputs[0], "float32")
    rows, half = x.shape[0], attrs.rotary // 2
    x = scope.reshape(x, f"{path}/heads", (rows, attrs.heads, attrs.dim))
    cos, sin = (
        scope.shared(
            f"{part}_{attrs.rope} by head",
            lambda part=part: scope.reshape(
                scope.inputs[f"{part}_{attrs.rope}"], f"{part}_{attrs.rope}/heads", (rows, 1, half)
            ),
        )
        for part in ("cos", "sin")
    )
    a, b = (scope.slice(x, f"{path}/{part}", 2, (i * half, (i + 1) * half)) for i, part in enumerate("ab"))

    def rotated(first: Any, second: Any, kind: str, part: str) -> Any:
        left = scope.op("mul", f"{path}/{part}_cos", x=first, y=cos)
        right = scope.op("mul", f"{path}/{part}_sin", x=second, y=sin)
        return scope.op(kind, f"{path}/{part}_turned", x=left, y=right)

    parts = [rotated(a, b, "sub", "a"), rotated(b, a, "add", "b")]
    if attrs.rotary < attrs.dim:
        parts.append(scope.slice(x, f"{path}/rest", 2, (attrs.rotary, attrs.dim)))
    whole = scope.op("concat", f"{path}/whole", values=parts, axis=-1)
    scope.set(path, scope.reshape(whole, path, (rows, attrs.heads * attrs.dim)))


def attend(build: FunctionBuilder, op: Op[Attention]) -> None:
    """Grouped-query attention; queries of a kv head are its matrix's rows, [kv_heads, group · rows, dim]."""
    attrs, scope, path = op.attrs, build.scope, op.output
    dtype = _width(build, op, attrs.softcap)
    rows, group = build.function.rows, attrs.heads // attrs.kv_heads
    q = _scaled(build, op.inputs[0], attrs.scale, path)
    q = scope.reshape(q, f"{path}/q_heads", (rows, attrs.kv_heads, group, attrs.dim))
    q = scope.transpose(q, f"{path}/q_groups", (1, 2, 0, 3))
    q = scope.reshape(q, f"{path}/q_rows", (attrs.kv_heads, group * rows, attrs.dim))
    kept = []
    for part, name in zip("kv", op.inputs[1:], strict=True):
        new = scope.reshape(scope.take(name, "float16"), f"{path}/{part}_heads", (rows, attrs.kv_heads, attrs.dim))
        new = scope.transpose(new, f"{path}/{part}_new", (1, 0, 2))
        kept.append(_keep(build, op, part, new))
    mixed = _attention(build, op, scope.cast(q, dtype, f"{path}/q_{dtype}"), (kept[0], kept[1]), attrs.softcap)
    mixed = scope.reshape(mixed, f"{path}/by_group", (attrs.kv_heads, group, rows, attrs.dim))
    mixed = scope.transpose(mixed, f"{path}/by_row", (2, 0, 1, 3))
    scope.set(path, scope.reshape(mixed, path, (rows, attrs.heads * attrs.dim)))


def attend_latents(build: FunctionBuilder, op: Op[LatentAttention]) -> None:
    """Latent attention in its absorbed form: grouped-query attention with one kv head over the kept latents."""
    attrs, scope, path = op.attrs, build.scope, op.output
    dtype = _width(build, op, None)
    rows, heads = build.function.rows, attrs.heads
    nope, rotary = (_scaled(build, name, attrs.scale, f"{path}/{name}") for name in op.inputs[:2])
    nope = scope.reshape(nope, f"{path}/nope_heads", (rows, heads, attrs.nope_dim))
    nope = scope.transpose(nope, f"{path}/nope_by_head", (1, 0, 2))
    absorbed = _each_head(build, nope, attrs.key_up.name, attrs.key_up.shape, f"{path}/absorbed")
    absorbed = scope.cast(absorbed, dtype, f"{path}/absorbed_{dtype}")
    rotary = scope.reshape(rotary, f"{path}/rope_heads", (rows, heads, attrs.rope_dim))
    rotary = scope.cast(scope.transpose(rotary, f"{path}/rope_by_head", (1, 0, 2)), dtype, f"{path}/rope_{dtype}")
    q = scope.op("concat", f"{path}/q", values=[absorbed, rotary], axis=-1)
    q = scope.reshape(q, f"{path}/q_rows", (1, heads * rows, attrs.latent_dim + attrs.rope_dim))
    parts = [scope.take(name, "float16") for name in op.inputs[2:]]
    new = scope.op("concat", f"{path}/new", values=parts, axis=-1)
    keys = _keep(build, op, "k", scope.reshape(new, f"{path}/k_new", (1, rows, new.shape[-1])))
    latents = (scope.slice(rows_of, f"{path}/latents", 2, (0, attrs.latent_dim)) for rows_of in (keys.past, keys.new))
    mixed = _attention(build, op, q, (keys, _Rows(*latents)), None)
    mixed = scope.reshape(mixed, f"{path}/by_head", (heads, rows, attrs.latent_dim))
    mixed = _each_head(build, mixed, attrs.value_up.name, attrs.value_up.shape, f"{path}/values")
    mixed = scope.transpose(mixed, f"{path}/by_row", (1, 0, 2))
    scope.set(path, scope.reshape(mixed, path, (rows, heads * attrs.value_dim)))


def _width(build: FunctionBuilder, op: Op[Any], softcap: float | None) -> Float:
    """The type of scores: float32 where they or the cap do not fit float16."""
    exact = softcap is None or float(np.float16(softcap)) == softcap
    return "float16" if exact and scores_of(op) not in build.scope.wide else "float32"


def _scaled(build: FunctionBuilder, value: str, scale: float, path: str) -> Any:
    x = build.scope.take(value, "float32")
    return build.scope.op("mul", f"{path}/scaled", x=x, y=np.float32(scale))


def _each_head(build: FunctionBuilder, x: Any, name: str, shape: tuple[int, ...], path: str) -> Any:
    """x [heads, rows, columns] times the transpose of each head's matrix, [heads, rows, …]."""
    scope = build.scope
    matrix = build.linears.matrix(name, shape, wide=False)
    x = scope.cast(x, "float32" if scope.dtype(matrix) == "float32" else "float16", f"{path}/cast")
    x = scope.padded(x, f"{path}/in", matrix.shape[-1])
    return scope.op("matmul", path, x=x, y=matrix, transpose_y=True)


def _keep(build: FunctionBuilder, op: Op[Any], part: str, new: Any) -> _Rows:
    """Give the new rows of a layer out, and take its past."""
    group = op.attrs.group
    kept = build.kept.setdefault(f"new_{part}_{group}", [])
    past = build.scope.pick(build.scope.inputs[f"past_{part}_{group}"], f"{op.output}/{part}_past", len(kept))
    kept.append(new)
    return _Rows(past, new)


def _attention(build: FunctionBuilder, op: Op[Any], q: Any, kept: tuple[_Rows, _Rows], cap: float | None) -> Any:
    """softmax(q · keysᵀ + mask) · values: q and the result are [kv_heads, group · rows, dim]."""
    scope, path, (keys, values) = build.scope, op.output, kept
    dtype: Float = "float32" if scope.dtype(q) == "float32" else "float16"
    rows, slots = build.function.rows, keys.past.shape[1]
    outer = (q.shape[0], q.shape[1] // rows)
    sides = []
    for side, part in (("past", keys.past), ("new", keys.new)):
        part = scope.cast(part, dtype, f"{path}/k_{side}_{dtype}")
        scores = scope.op("matmul", f"{path}/scores_{side}", x=q, y=part, transpose_y=True)
        scores = scope.reshape(scores, f"{path}/scores_{side}_rows", (*outer, rows, part.shape[1]))
        if cap is not None:
            scores = softcap(scope, scores, cap, f"{path}/capped_{side}")
        mask = _mask(build, op.attrs.group, side, dtype)
        sides.append(scores if mask is None else scope.op("add", f"{path}/seen_{side}", x=scores, y=mask))
    weights = scope.op(
        "softmax", f"{path}/weights", x=scope.op("concat", f"{path}/all", values=sides, axis=-1), axis=-1
    )
    total = None
    for side, part, bounds in (("past", values.past, (0, slots)), ("new", values.new, (slots, slots + rows))):
        share = scope.slice(weights, f"{path}/weights_{side}", 3, bounds)
        share = scope.reshape(share, f"{path}/weights_{side}_rows", (q.shape[0], q.shape[1], bounds[1] - bounds[0]))
        part = scope.cast(part, dtype, f"{path}/v_{side}_{dtype}")
        mixed = scope.op("matmul", f"{path}/mixed_{side}", x=share, y=part)
        total = mixed if total is None else scope.op("add", f"{path}/mixed", x=total, y=mixed)
    return total


def _mask(build: FunctionBuilder, group: int, side: str, dtype: Float) -> Any:
    """What hides slots of the past, or later new rows; None where a row sees all."""
    scope, rows = build.scope, build.function.rows
    hidden = HIDDEN if dtype == "float16" else HIDDEN * _WIDE_HIDDEN
    if side == "past":
        mask = scope.inputs[f"mask_{group}"]
        if dtype == "float16":
            return mask

        def widened() -> Any:
            wide = scope.cast(mask, "float32", f"mask_{group}/float32")
            return scope.op("mul", f"mask_{group}/wide", x=wide, y=np.float32(_WIDE_HIDDEN))

        return scope.shared(f"mask {group}", widened)
    if rows == 1:
        return None
    window = min(rows, build.spec.kv_groups[group].window or rows)
    distance = np.arange(rows)[:, None] - np.arange(rows)
    seen = (distance >= 0) & (distance < window)
    return scope.constant(f"new_mask.{rows}.{window}/{dtype}", numbers(np.where(seen, 0.0, hidden).astype(dtype)))
