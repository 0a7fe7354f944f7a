"""DecoderSpec: everything that a backend needs to know about a decoder, and nothing about any one family.

A model family is data: `exporters/architectures` turns a checkpoint's config into one of these, and every reader
(`edge/graph`, the reference, the emitters, the runtimes) works from it alone. Frozen, and round-trips through JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from edge.errors import BundleError

RopeKind = Literal["default", "linear", "dynamic", "yarn", "longrope", "llama3"]
QkNorm = Literal["none", "head", "full"]
Activation = Literal["silu", "gelu_tanh"]
LAYERS = 4096  # the most that a decoder may have


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding of the first `dim` dimensions of a head (half-split pairs: i with i + dim/2).

    `factor`, `low_freq_factor`, `high_freq_factor` and `original_context` are those of the kind's published
    formula and are ignored by kinds that do not use them; `edge.rope` computes the frequencies. The two frequency
    factors count turns over the original context; yarn calls them beta_slow and beta_fast. `attention_factor`
    multiplies what is rotated. `short_factors` and `long_factors` are longrope's, [dim / 2].
    """

    dim: int
    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    attention_factor: float = 1.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What may differ between layers. `window` None attends to everything; W sees itself and the W-1 before it.

    `rope` indexes `DecoderSpec.ropes`; None means that the layer has no positional encoding.
    """

    window: int | None = None
    rope: int | None = 0


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder-only transformer with RMS norms, rotary positions, grouped-query attention and a gated MLP.

    `norm_offset` is added to every norm weight (1.0 for families that store w - 1). `pre_norms` are the norms before
    attention and MLP, `post_norms` those on their outputs before the residual addition; "sandwich" families have both.
    `qk_norm`: "head" normalizes each head of q and k, "full" the whole projection. `attention_scale` multiplies q·k.
    A soft-cap c maps x to c·tanh(x/c). `tied_head`: the head's weight is the embedding's.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: tuple[LayerSpec, ...]
    ropes: tuple[RopeSpec, ...]
    context: int
    norm_eps: float
    attention_scale: float
    norm_offset: float = 0.0
    pre_norms: bool = True
    post_norms: bool = False
    qk_norm: QkNorm = "none"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    activation: Activation = "silu"
    embedding_scale: float = 1.0
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    tied_head: bool = False

    def __post_init__(self) -> None:
        """Raise BundleError for sizes that contradict each other: a spec may come from a hostile manifest."""
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "heads", "kv_heads", "head_dim", "context")
        for name in sizes:
            if not 0 < getattr(self, name) < 2**31:
                raise BundleError(f"decoder spec: {name} is {getattr(self, name)}, which is not a size")
        if not 0 < len(self.layers) <= LAYERS:
            raise BundleError(f"decoder spec: {len(self.layers)} layers; 1 to {LAYERS} are allowed")
        if self.heads % self.kv_heads:
            raise BundleError(f"decoder spec: {self.heads} heads cannot be grouped over {self.kv_heads} kv heads")
        if not 0 < self.norm_eps < 1:
            raise BundleError(f"decoder spec: norm_eps {self.norm_eps} is not between 0 and 1")
        for layer in self.layers:
            if layer.rope is not None and not 0 <= layer.rope < len(self.ropes):
                raise BundleError(f"decoder spec: a layer names rope {layer.rope} of {len(self.ropes)}")
            if layer.window is not None and not 0 < layer.window < 2**31:
                raise BundleError(f"decoder spec: a window of {layer.window} is not possible")
        for rope in self.ropes:
            _check_rope(rope, self.head_dim)
        _check_values(self)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The distinct windows in order of first use: layers with the same window share one KV ring."""
        return tuple(dict.fromkeys(layer.window for layer in self.layers))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DecoderSpec:
        """The inverse of `to_json`. Raises BundleError for a missing, unknown or ill-typed field."""
        try:
            values = dict(data)
            values["layers"] = tuple(_record(LayerSpec, item) for item in values["layers"])
            values["ropes"] = tuple(_rope(item) for item in values["ropes"])
            spec: DecoderSpec = _record(cls, values)
            return spec
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise BundleError(f"decoder spec: {type(error).__name__}: {error}") from error


def _check_values(spec: DecoderSpec) -> None:
    for name in ("attention_scale", "norm_offset", "embedding_scale"):
        if not _real(getattr(spec, name)):
            raise BundleError(f"decoder spec: {name} is {getattr(spec, name)}, which is no finite number")
    for name in ("attention_softcap", "logit_softcap"):
        cap = getattr(spec, name)
        if cap is not None and not (_real(cap) and cap > 0):
            raise BundleError(f"decoder spec: {name} is {cap}; a cap is a positive number")
    for name, kind in (("activation", Activation), ("qk_norm", QkNorm)):
        if getattr(spec, name) not in get_args(kind):
            raise BundleError(f"decoder spec: {name} {getattr(spec, name)!r}; known: {', '.join(get_args(kind))}")


def _check_rope(rope: RopeSpec, head_dim: int) -> None:
    if rope.kind not in get_args(RopeKind):
        raise BundleError(f"decoder spec: rope kind {rope.kind!r}; known: {', '.join(get_args(RopeKind))}")
    if rope.dim % 2 or not 0 < rope.dim <= head_dim:
        raise BundleError(f"decoder spec: rope over {rope.dim} of {head_dim} dimensions is not possible")
    for name in ("theta", "factor", "attention_factor"):
        value = getattr(rope, name)
        if not (_real(value) and value > 0):
            raise BundleError(f"decoder spec: rope {name} is {value}; it must be a positive number")
    if rope.kind in ("dynamic", "yarn", "longrope", "llama3") and not 0 < rope.original_context < 2**31:
        raise BundleError(f"decoder spec: rope kind {rope.kind} over a context of {rope.original_context}")
    low, high = rope.low_freq_factor, rope.high_freq_factor
    if rope.kind in ("yarn", "llama3") and not 1e-6 < low < high < 1e6:
        raise BundleError(f"decoder spec: rope kind {rope.kind} with frequency factors {low} and {high}")
    if rope.kind == "yarn" and rope.theta <= 1:
        raise BundleError(f"decoder spec: rope kind yarn with a theta of {rope.theta}; it must be above 1")
    if rope.kind == "dynamic" and (rope.dim < 4 or rope.factor > 1e9):
        raise BundleError(f"decoder spec: rope kind dynamic over {rope.dim} dimensions with a factor of {rope.factor}")
    for factors in (rope.short_factors, rope.long_factors):
        if len(factors) != (rope.dim // 2 if rope.kind == "longrope" else 0):
            raise BundleError(
                f"decoder spec: {len(factors)} factors for rope kind {rope.kind} of {rope.dim} dimensions"
            )
        if not all(_real(factor) and factor > 0 for factor in factors):
            raise BundleError("decoder spec: a factor of rope kind longrope is no positive number")


def _real(value: float) -> bool:
    """Whether a JSON number is finite and fits a float: Python's reader takes NaN, Infinity and any integer."""
    return -1e300 < value < 1e300


def _rope(data: Mapping[str, Any]) -> RopeSpec:
    values = dict(data)
    for name in ("short_factors", "long_factors"):
        factors = values.get(name, ())
        listed = isinstance(factors, list | tuple)
        if not listed or not all(type(item) in (int, float) and _real(item) for item in factors):
            raise BundleError(f"decoder spec: rope {name} is no list of numbers")
        values[name] = tuple(float(item) for item in factors)
    rope: RopeSpec = _record(RopeSpec, values)
    return rope


def _record(kind: type[Any], data: Mapping[str, Any]) -> Any:
    known = {field.name: str(field.type) for field in fields(kind)}
    for name, value in data.items():
        if name not in known:
            raise BundleError(f"decoder spec: unknown field {name!r} in {kind.__name__}")
        wanted = known[name].split(" | ")[0]
        if wanted == "float" and isinstance(value, int) and not isinstance(value, bool):
            continue
        scalar = {"int": int, "float": float, "bool": bool, "str": str}.get(wanted)
        optional = value is None and known[name].endswith("| None")
        if scalar and not optional and (not isinstance(value, scalar) or isinstance(value, bool) != (scalar is bool)):
            raise BundleError(f"decoder spec: {name} is {value!r}, which is no {wanted}")
    return kind(**data)
