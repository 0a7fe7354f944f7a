"""Recipes: ordered rules that choose a scheme and a method for each matrix by its canonical name; the first match wins.

    name = "mine"
    activation_kl = 0.002           # what int8 activations may cost the ONNX graph (mean KL, nats); absent: anything
    [[rule]]
    match = ["embed", "head"]       # one shell-style pattern or several
    scheme = "int8-g32-sym"         # a name from edge.payload.SCHEMES
    method = "nearest"              # a name from exporters.quant.method.METHODS; absent: by the export's effort
    carry = true                    # keep a source's own codes where a scheme holds them exactly
    [[rule]]
    match = "layers.3.attn.[qk]"
    heads = [0, 5]                  # only these heads of a matrix; other rules say what becomes of the others
    scheme = "int8-g32-sym"

Vectors (norms, biases) are float32 and no rule applies to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any

from edge import payload, texts
from edge.errors import FormatError, NotFoundError, OptionError
from edge.ops import Weight
from edge.paths import expanded
from edge.payload import Axis, Layout, Scheme
from exporters.checkpoint import SourceTensor
from exporters.quant.method import DEFAULT, find

_FOLDER = Path(__file__).parent / "recipes"
_KEYS = ("match", "scheme", "method", "carry", "heads")
SMALL = 1_000_000_000  # parameters below which `pick` chooses sub1b


@dataclass(frozen=True, slots=True)
class Rule:
    match: tuple[str, ...]
    scheme: str
    carry: bool = False
    method: str = DEFAULT
    heads: tuple[int, ...] | None = None

    def takes(self, weight: str) -> bool:
        """Whether the rule is for a weight, or for some heads of it."""
        return any(fnmatchcase(weight, pattern) for pattern in self.match)


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of one weight: its layout (see edge.payload), the method of each run, and a note for the report."""

    layout: Layout
    methods: tuple[str, ...] = (DEFAULT,)
    note: str = ""

    @classmethod
    def of(cls, scheme: str, method: str = DEFAULT, note: str = "") -> Choice:
        """One scheme for the whole weight."""
        return cls(Layout(((0, scheme),)), (method,), note)


@dataclass(frozen=True, slots=True)
class Recipe:
    name: str
    rules: tuple[Rule, ...]
    activation_kl: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "activation_kl": self.activation_kl, "rule": [_told(rule) for rule in self.rules]}

    def choose(self, weight: Weight, source: SourceTensor) -> Choice:
        """The layout and methods for a weight.

        Raises OptionError when it is a matrix and no rule takes all of it, or a rule names heads that it has not.
        """
        if not weight.is_matrix:
            return Choice.of("float32")
        rules = [rule for rule in self.rules if rule.takes(weight.name)]
        whole = next((index for index, rule in enumerate(rules) if rule.heads is None), len(rules))
        if rules and whole == 0:
            return _choose(rules[0], weight, source)
        if not rules:
            raise OptionError(f"recipe {self.name!r} has no rule for {weight.name}; end it with a rule that matches *")
        return self._by_head(rules[: whole + 1], weight, source)

    def _by_head(self, rules: list[Rule], weight: Weight, source: SourceTensor) -> Choice:
        """A choice for each head by the first rule that names it, neighbours that are chosen alike in one run."""
        axis, head_dim = _axis(weight), weight.head_dim
        if axis is None:
            raise OptionError(f"recipe {self.name!r} names heads of {weight.name}, which has none")
        count = weight.stored[0 if axis == "rows" else 1] // head_dim
        named = [head for rule in rules for head in rule.heads or ()]
        if named and max(named) >= count:
            raise OptionError(f"recipe {self.name!r} names head {max(named)} of {weight.name}, which has 0…{count - 1}")
        chosen = []
        for head in range(count):
            rule = next((rule for rule in rules if rule.heads is None or head in rule.heads), None)
            if rule is None:
                raise OptionError(
                    f"recipe {self.name!r} has no rule for head {head} of {weight.name}; end it with one that matches *"
                )
            chosen.append(_choose(rule, weight, source))
        alike = [(choice, sum(1 for _ in same)) for choice, same in groupby(chosen)]
        if len(alike) == 1:
            return chosen[0]
        runs = tuple((heads * head_dim, str(choice.layout)) for choice, heads in alike)
        layout, used = Layout(runs, axis), tuple(choice.methods[0] for choice, _ in alike)
        if axis == "columns" and "carry" in used and _cuts_groups(source, head_dim):
            raise OptionError(
                f"recipe {self.name!r} carries codes of {weight.name} by heads, which its source's groups straddle; "
                "leave out carry in the rule"
            )
        notes = dict.fromkeys(choice.note for choice, _ in alike if choice.note)
        return Choice(layout, used, "; ".join(notes))


def _told(rule: Rule) -> dict[str, Any]:
    """A rule as the manifest tells it."""
    told = {"match": list(rule.match), "scheme": rule.scheme, "method": rule.method, "carry": rule.carry}
    return told if rule.heads is None else {**told, "heads": list(rule.heads)}


def _axis(weight: Weight) -> Axis | None:
    """Where the heads of a matrix lie; None if it has none."""
    if not weight.head_dim:
        return None
    return "columns" if weight.role == "output" else "rows"


def _cuts_groups(source: SourceTensor, head_dim: int) -> bool:
    return source.scheme is not None and head_dim % source.scheme.group != 0


def _choose(rule: Rule, weight: Weight, source: SourceTensor) -> Choice:
    """What a rule makes of a weight, or of one head of it."""
    head_dim, carried = weight.head_dim, rule.carry and source.scheme is not None
    scheme = source.scheme if carried else payload.parse_scheme(rule.scheme)
    method = "carry" if carried else rule.method
    if scheme is None:  # stored as it is: there is nothing to choose
        return Choice.of(rule.scheme)
    name = scheme.name
    if _axis(weight) != "columns" or head_dim % scheme.group == 0:
        return Choice.of(name, method)
    if carried:  # the source's groups are what they are
        return Choice.of(name, method, _straddling(scheme, head_dim))
    return _within_heads(scheme, method, head_dim)


def _straddling(scheme: Scheme, head_dim: int) -> str:
    return f"groups of {scheme.group} straddle heads of {head_dim}"


def _within_heads(scheme: Scheme, method: str, head_dim: int) -> Choice:
    """A group for `o` that divides head_dim, so that no group straddles a head."""
    fitting = [group for group in (64, 32) if group < scheme.group and head_dim % group == 0]
    if not fitting:
        return Choice.of(scheme.name, method, _straddling(scheme, head_dim))
    note = f"group {scheme.group} does not divide heads of {head_dim}; {fitting[0]} used"
    return Choice.of(Scheme(scheme.bits, fitting[0], scheme.kind).name, method, note)


def named() -> list[str]:
    """The recipes that ship with the program."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def pick(parameters: int) -> str:
    """The recipe for a model of that many parameters, where none was asked for."""
    return "sub1b" if parameters < SMALL else "7b"


def load(name_or_path: str | Path, method: str = DEFAULT) -> Recipe:
    """A shipped recipe by name, or a TOML file; `method` is that of rules which name none.

    Raises NotFoundError or OptionError.
    """
    path = expanded(name_or_path)
    if str(name_or_path) in named():
        path = _FOLDER / f"{name_or_path}.toml"
    elif not path.is_file():
        raise NotFoundError(f"no recipe {str(name_or_path)!r}: no such file, and shipped are {', '.join(named())}")
    try:
        data = texts.read_toml(path)
    except (OSError, ValueError) as error:
        raise OptionError(f"recipe {path}: {error}") from error
    unknown = set(data) - {"name", "activation_kl", "rule"}
    if unknown or not isinstance(data.get("rule"), list) or not data["rule"]:
        problem = f"unknown key {min(unknown)!r}" if unknown else "no [[rule]]"
        raise OptionError(f"recipe {path}: {problem}; a recipe has a name and a list of rules")
    rules = tuple(_rule(path, index, item, method) for index, item in enumerate(data["rule"], 1))
    limit = data.get("activation_kl")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < 1e9):
        raise OptionError(f"recipe {path}: activation_kl is {limit!r}; it must be a positive number")
    return Recipe(str(data.get("name", path.stem)), rules, limit)


def _rule(path: Path, index: int, item: Any, default: str) -> Rule:
    where = f"recipe {path}, rule {index}"
    if not isinstance(item, dict):
        raise OptionError(f"{where}: {item!r} is no table; write it under [[rule]]")
    unknown = set(item) - set(_KEYS)
    if unknown:
        raise OptionError(f"{where}: unknown key {min(unknown)!r}; known are {', '.join(_KEYS)}")
    match = item.get("match")
    patterns = [match] if isinstance(match, str) else match
    if not isinstance(patterns, list) or not patterns or not all(isinstance(p, str) and p for p in patterns):
        raise OptionError(f"{where}: match must be a pattern or a list of patterns")
    carry = item.get("carry", False)
    if not isinstance(carry, bool):
        raise OptionError(f"{where}: carry must be true or false")
    method = item.get("method", default)
    try:
        payload.parse_scheme(str(item.get("scheme")))
        find(str(method))
    except (FormatError, OptionError) as error:
        raise OptionError(f"{where}: {error}") from error
    return Rule(tuple(patterns), str(item["scheme"]), carry, method, _read_heads(where, item.get("heads")))


def _read_heads(where: str, heads: Any) -> tuple[int, ...] | None:
    if heads is None:
        return None
    if not isinstance(heads, list) or not heads or not all(type(h) is int and h >= 0 for h in heads):
        raise OptionError(f"{where}: heads must be a list of heads, counted from 0")
    return tuple(sorted(set(heads)))
