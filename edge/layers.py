"""LayerSpec: what one layer of a decoder computes, and what it keeps of each token.

A variant of attention or of the MLP is a type of its own; sizes, heads, windows and ropes belong to the layer, so that
layers of one model may differ in all of them. A new variant is a type here and an entry in `ATTENTIONS` or `MLPS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from edge.errors import FormatError
from edge.records import check_choice, check_positive, check_sizes, check_softcap, read_record

QkNorm = Literal["none", "head", "full"]
Activation = Literal["silu", "gelu_tanh"]
Score = Literal["softmax", "sigmoid"]
KvKind = Literal["heads", "latent"]


@dataclass(frozen=True, slots=True)
class KvSpec:
    """What a layer keeps of each token. Layers whose KvSpec is equal form a group and share one ring.

    heads    a key of `key_dim` numbers (after RoPE) and a value of `value_dim` for each of `kv_heads`
    latent   `key_dim` numbers that all heads share, a latent and then a key part after RoPE; `value_dim` is 0

    A query sees itself and the `window - 1` positions before it; None: all before it.
    """

    kind: KvKind
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None


@dataclass(frozen=True, slots=True)
class Gqa:
    """Grouped-query attention (arXiv:2305.13245): `heads` queries of `head_dim` numbers, `kv_heads` keys and values.

    `scale` multiplies q·k. `window` None attends to everything; W sees itself and the W-1 before it. `rope` indexes
    `DecoderSpec.ropes`; None means that the layer has no positional encoding. A `softcap` c maps a score x to
    c·tanh(x/c). `qk_norm`: "head" normalizes each head of q and k, "full" the whole projection.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    rope: int | None = 0
    softcap: float | None = None
    qk_norm: QkNorm = "none"
    qkv_bias: bool = False
    output_bias: bool = False

    def __post_init__(self) -> None:
        check_sizes(self, "heads", "kv_heads", "head_dim")
        if self.heads % self.kv_heads:
            raise FormatError(f"decoder spec: {self.heads} heads cannot be grouped over {self.kv_heads} kv heads")
        if self.window is not None and not 0 < self.window < 2**31:
            raise FormatError(f"decoder spec: a window of {self.window} is not possible")
        check_positive(self, "scale")
        check_softcap(self, "softcap")
        check_choice(self, "qk_norm", get_args(QkNorm))

    @property
    def kv(self) -> KvSpec:
        return KvSpec("heads", self.kv_heads, self.head_dim, self.head_dim, self.window)

    @property
    def rotated_dim(self) -> int:
        """The most numbers of a head that its rope may rotate."""
        return self.head_dim


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434; see `edge.ops.LatentAttention`).

    Queries come through a normalized bottleneck of `query_rank` numbers, or straight from the input where it is None.
    `scale` multiplies q·k. The two inner norms have an eps of their own, `norm_eps`, and no offset. `latent_bias` is on
    what makes the bottlenecks, `output_bias` on the last matrix.
    """

    heads: int
    query_rank: int | None
    latent_dim: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    scale: float
    rope: int = 0
    norm_eps: float = 1e-6
    latent_bias: bool = False
    output_bias: bool = False

    def __post_init__(self) -> None:
        check_sizes(self, "heads", "latent_dim", "nope_dim", "rope_dim", "value_dim")
        if self.query_rank is not None:
            check_sizes(self, "query_rank")
        check_positive(self, "scale")
        if not 0 < self.norm_eps < 1:
            raise FormatError(f"decoder spec: norm_eps {self.norm_eps} is not between 0 and 1")

    @property
    def kv(self) -> KvSpec:
        return KvSpec("latent", 1, self.latent_dim + self.rope_dim, 0, None)

    @property
    def window(self) -> None:
        """Latent attention sees everything."""
        return None

    @property
    def rotated_dim(self) -> int:
        return self.rope_dim


@dataclass(frozen=True, slots=True)
class Dense:
    """A gated MLP (arXiv:2002.05202) of `size` inner numbers: down(activation(gate(x)) * up(x))."""

    size: int
    activation: Activation = "silu"
    bias: bool = False

    def __post_init__(self) -> None:
        check_sizes(self, "size")
        check_choice(self, "activation", get_args(Activation))


@dataclass(frozen=True, slots=True)
class Moe:
    """A mixture of gated MLPs (see `edge.ops.Router` and `edge.ops.Experts`), of `size` inner numbers each.

    `score_bias`: the router ranks experts with a bias for each. `shared_size` above 0 adds an MLP of that size that
    takes every token.
    """

    experts: int
    top_k: int
    size: int
    activation: Activation = "silu"
    score: Score = "softmax"
    normalize: bool = False
    scale: float = 1.0
    score_bias: bool = False
    groups: int = 1
    top_groups: int = 1
    group_best: int = 1
    shared_size: int = 0

    def __post_init__(self) -> None:
        check_sizes(self, "experts", "top_k", "size", "groups", "top_groups", "group_best")
        check_choice(self, "activation", get_args(Activation))
        check_choice(self, "score", get_args(Score))
        check_positive(self, "scale")
        if not 0 <= self.shared_size < 2**31:
            raise FormatError(f"decoder spec: shared_size is {self.shared_size}, which is not a size")
        each, left = divmod(self.experts, self.groups)
        if left or self.top_groups > self.groups or self.group_best > each or self.top_k > each * self.top_groups:
            raise FormatError(
                f"decoder spec: {self.top_k} of {self.experts} experts cannot be chosen from {self.top_groups} of "
                f"{self.groups} groups by their {self.group_best} best"
            )


Attention = Gqa | Mla
Mlp = Dense | Moe
ATTENTIONS: dict[str, type[Attention]] = {"gqa": Gqa, "mla": Mla}
MLPS: dict[str, type[Mlp]] = {"dense": Dense, "moe": Moe}
_BRANCHES: dict[str, Mapping[str, type[Any]]] = {"attention": ATTENTIONS, "mlp": MLPS}


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer: attention, then an MLP, each on a branch of the residual stream."""

    attention: Attention
    mlp: Mlp

    def to_json(self) -> dict[str, Any]:
        """Both branches, each with its `kind`."""
        branches = {}
        for name, kinds in _BRANCHES.items():
            branch = getattr(self, name)
            kind = next(kind for kind, known in kinds.items() if type(branch) is known)
            branches[name] = {"kind": kind, **asdict(branch)}
        return branches

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LayerSpec:
        """The inverse of `to_json`. Raises FormatError, or KeyError, TypeError or AttributeError for other shapes."""
        if set(data) != set(_BRANCHES):
            raise FormatError(f"decoder spec: a layer of {', '.join(sorted(data))}; it has an attention and an mlp")
        branches = {}
        for name, kinds in _BRANCHES.items():
            values = dict(data[name])
            kind = values.pop("kind")
            if kind not in kinds:
                raise FormatError(f"decoder spec: {name} of kind {kind!r}; known: {', '.join(kinds)}")
            branches[name] = read_record(kinds[kind], values)
        return cls(**branches)
