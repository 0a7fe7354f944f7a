"""DecoderSpec: everything that a backend needs to know about a decoder, and nothing about any one family.

A model family is data: `exporters/architectures` turns a checkpoint's config into one of these, and every reader
(`edge/graph`, the reference, the emitters, the runtimes) works from it alone. Frozen, and round-trips through JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from edge.errors import FormatError
from edge.layers import KvSpec, LayerSpec
from edge.records import check_real, check_sizes, check_softcap, is_real, read_record

RopeKind = Literal["default", "linear", "dynamic", "yarn", "longrope", "llama3"]
LAYERS = 4096  # the most that a decoder may have


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding of the first `dim` dimensions of a head (half-split pairs: i with i + dim/2).

    `factor`, `low_freq_factor`, `high_freq_factor` and `original_context` are those of the kind's published
    formula and are ignored by kinds that do not use them; `edge.rope` computes the frequencies. The two frequency
    factors count rotations over the original context; yarn calls them beta_slow and beta_fast. `attention_factor`
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
class DecoderSpec:
    """A decoder-only transformer with RMS norms: what its layers share. What may differ between them is in `layers`.

    `norm_offset` is added to every norm weight (1.0 for families that store w - 1). `pre_norms` are the norms before
    attention and MLP, `post_norms` those on their outputs before the residual addition; "sandwich" families have both.
    A `logit_softcap` c maps x to c·tanh(x/c). `tied_head`: the head's weight is the embedding's.

    `kv_groups` follows from the layers: their distinct KvSpecs in order of first use; layers that keep their tokens
    alike share one KV ring. `layer_groups` is the index in it of each layer's group.
    """

    family: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    ropes: tuple[RopeSpec, ...]
    context: int
    norm_eps: float
    norm_offset: float = 0.0
    pre_norms: bool = True
    post_norms: bool = False
    embedding_scale: float = 1.0
    logit_softcap: float | None = None
    tied_head: bool = False
    kv_groups: tuple[KvSpec, ...] = field(init=False, repr=False, compare=False)
    layer_groups: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise FormatError for sizes that contradict each other: a spec may come from a hostile manifest."""
        check_sizes(self, "vocab_size", "hidden_size", "context")
        if not 0 < len(self.layers) <= LAYERS:
            raise FormatError(f"decoder spec: {len(self.layers)} layers; 1 to {LAYERS} are allowed")
        if not 0 < self.norm_eps < 1:
            raise FormatError(f"decoder spec: norm_eps {self.norm_eps} is not between 0 and 1")
        for rope in self.ropes:
            _check_rope(rope)
        for attention in dict.fromkeys(layer.attention for layer in self.layers):
            if attention.rope is None:
                continue
            if not 0 <= attention.rope < len(self.ropes):
                raise FormatError(f"decoder spec: a layer names rope {attention.rope} of {len(self.ropes)}")
            dim = self.ropes[attention.rope].dim
            if dim > attention.rotated_dim:
                raise FormatError(
                    f"decoder spec: rope over {dim} of {attention.rotated_dim} dimensions is not possible"
                )
        check_real(self, "norm_offset", "embedding_scale")
        check_softcap(self, "logit_softcap")
        index: dict[KvSpec, int] = {}
        groups = tuple(index.setdefault(layer.attention.kv, len(index)) for layer in self.layers)
        object.__setattr__(self, "kv_groups", tuple(index))
        object.__setattr__(self, "layer_groups", groups)

    def to_json(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.init}
        layers, ropes = [layer.to_json() for layer in self.layers], [asdict(rope) for rope in self.ropes]
        return {**values, "layers": layers, "ropes": ropes}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DecoderSpec:
        """The inverse of `to_json`. Raises FormatError for a missing, unknown or ill-typed field."""
        try:
            values = dict(data)
            values["layers"] = tuple(LayerSpec.from_json(item) for item in values["layers"])
            values["ropes"] = tuple(_rope(item) for item in values["ropes"])
            spec: DecoderSpec = read_record(cls, values)
            return spec
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise FormatError(f"decoder spec: {type(error).__name__}: {error}") from error


def _check_rope(rope: RopeSpec) -> None:
    if rope.kind not in get_args(RopeKind):
        raise FormatError(f"decoder spec: rope kind {rope.kind!r}; known: {', '.join(get_args(RopeKind))}")
    if rope.dim % 2 or not 0 < rope.dim < 2**31:
        raise FormatError(f"decoder spec: rope over {rope.dim} dimensions is not possible; they are rotated in pairs")
    for name in ("theta", "factor", "attention_factor"):
        value = getattr(rope, name)
        if not (is_real(value) and value > 0):
            raise FormatError(f"decoder spec: rope {name} is {value}; it must be a positive number")
    if not (is_real(rope.low_freq_factor) and is_real(rope.high_freq_factor) and 0 <= rope.original_context < 2**31):
        raise FormatError(f"decoder spec: rope kind {rope.kind} has frequency factors or a context that are no numbers")
    if rope.kind in ("dynamic", "yarn", "longrope", "llama3") and not rope.original_context:
        raise FormatError(f"decoder spec: rope kind {rope.kind} over a context of {rope.original_context}")
    low, high = rope.low_freq_factor, rope.high_freq_factor
    if rope.kind in ("yarn", "llama3") and not 1e-6 < low < high < 1e6:
        raise FormatError(f"decoder spec: rope kind {rope.kind} with frequency factors {low} and {high}")
    if rope.kind == "yarn" and rope.theta <= 1:
        raise FormatError(f"decoder spec: rope kind yarn with a theta of {rope.theta}; it must be above 1")
    if rope.kind == "dynamic" and (rope.dim < 4 or rope.factor > 1e9):
        raise FormatError(f"decoder spec: rope kind dynamic over {rope.dim} dimensions with a factor of {rope.factor}")
    for factors in (rope.short_factors, rope.long_factors):
        if len(factors) != (rope.dim // 2 if rope.kind == "longrope" else 0):
            raise FormatError(
                f"decoder spec: {len(factors)} factors for rope kind {rope.kind} of {rope.dim} dimensions"
            )
        if not all(is_real(factor) and factor > 0 for factor in factors):
            raise FormatError("decoder spec: a factor of rope kind longrope is no positive number")


def _rope(data: Mapping[str, Any]) -> RopeSpec:
    values = dict(data)
    for name in ("short_factors", "long_factors"):
        factors = values.get(name, ())
        listed = isinstance(factors, list | tuple)
        if not listed or not all(type(item) in (int, float) and is_real(item) for item in factors):
            raise FormatError(f"decoder spec: rope {name} is no list of numbers")
        values[name] = tuple(float(item) for item in factors)
    rope: RopeSpec = read_record(RopeSpec, values)
    return rope
