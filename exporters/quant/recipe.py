"""Recipes: ordered rules that choose a scheme for each matrix by its canonical name; the first match wins.

    name = "mine"
    activation_kl = 0.002           # what int8 activations may cost the ONNX graph (mean KL, nats); absent: anything
    [[rule]]
    match = ["embed", "head"]       # one shell-style pattern or several
    scheme = "int8-g32-sym"         # a name from edge.payload.SCHEMES
    carry = true                    # keep a source's own codes where a scheme holds them exactly

Vectors (norms, biases) are float32 and no rule applies to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from edge import payload, texts
from edge.decoder import DecoderSpec
from edge.errors import NotFoundError, OptionError
from edge.graph import Weight
from exporters.checkpoint import SourceTensor

_FOLDER = Path(__file__).parent / "recipes"
SMALL = 1_000_000_000  # parameters below which `pick` chooses sub1b


@dataclass(frozen=True, slots=True)
class Rule:
    match: tuple[str, ...]
    scheme: str
    carry: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of one weight: its scheme, whether the source's codes are carried, and a note for the report."""

    scheme: str
    carried: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Recipe:
    name: str
    rules: tuple[Rule, ...]
    activation_kl: float | None = None

    def to_json(self) -> dict[str, Any]:
        rules = [{"match": list(rule.match), "scheme": rule.scheme, "carry": rule.carry} for rule in self.rules]
        return {"name": self.name, "activation_kl": self.activation_kl, "rule": rules}

    def choose(self, weight: Weight, source: SourceTensor, spec: DecoderSpec) -> Choice:
        """The scheme for a weight. Raises OptionError when it is a matrix and no rule matches."""
        if len(weight.shape) != 2:
            return Choice("float32")
        rule = next((rule for rule in self.rules if any(fnmatchcase(weight.name, p) for p in rule.match)), None)
        if rule is None:
            raise OptionError(f"recipe {self.name!r} has no rule for {weight.name}; end it with a rule that matches *")
        carried = rule.carry and source.scheme is not None
        scheme = source.scheme if carried else payload.parse_scheme(rule.scheme)
        name = rule.scheme if scheme is None else scheme.name
        if scheme is None or not weight.name.endswith(".attn.o") or spec.head_dim % scheme.group == 0:
            return Choice(name, carried)
        if carried:  # the source's groups are what they are
            return Choice(name, carried, _straddling(scheme, spec.head_dim))
        return _within_heads(scheme, spec.head_dim)


def _straddling(scheme: payload.Scheme, head_dim: int) -> str:
    return f"groups of {scheme.group} straddle heads of {head_dim}"


def _within_heads(scheme: payload.Scheme, head_dim: int) -> Choice:
    """A group for `o` that divides head_dim, so that no group straddles a head."""
    fitting = [group for group in (64, 32) if group < scheme.group and head_dim % group == 0]
    if not fitting:
        return Choice(scheme.name, note=_straddling(scheme, head_dim))
    smaller = payload.Scheme(scheme.bits, fitting[0], scheme.kind)
    return Choice(smaller.name, note=f"group {scheme.group} does not divide heads of {head_dim}; {fitting[0]} used")


def named() -> list[str]:
    """The recipes that ship with the program."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def pick(parameters: int) -> str:
    """The recipe for a model of that many parameters, where none was asked for."""
    return "sub1b" if parameters < SMALL else "7b"


def load(name_or_path: str | Path) -> Recipe:
    """A shipped recipe by name, or a TOML file. Raises NotFoundError or OptionError."""
    path = Path(name_or_path)
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
    rules = tuple(_rule(path, index, item) for index, item in enumerate(data["rule"], 1))
    limit = data.get("activation_kl")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < 1e9):
        raise OptionError(f"recipe {path}: activation_kl is {limit!r}; it must be a positive number")
    return Recipe(str(data.get("name", path.stem)), rules, limit)


def _rule(path: Path, index: int, item: Any) -> Rule:
    where = f"recipe {path}, rule {index}"
    if not isinstance(item, dict):
        raise OptionError(f"{where}: {item!r} is no table; write it under [[rule]]")
    unknown = set(item) - {"match", "scheme", "carry"}
    if unknown:
        raise OptionError(f"{where}: unknown key {min(unknown)!r}; known are match, scheme, carry")
    match = item.get("match")
    patterns = [match] if isinstance(match, str) else match
    if not isinstance(patterns, list) or not patterns or not all(isinstance(p, str) and p for p in patterns):
        raise OptionError(f"{where}: match must be a pattern or a list of patterns")
    carry = item.get("carry", False)
    if not isinstance(carry, bool):
        raise OptionError(f"{where}: carry must be true or false")
    try:
        payload.parse_scheme(str(item.get("scheme")))
    except OptionError as error:
        raise OptionError(f"{where}: {error}") from error
    return Rule(tuple(patterns), str(item["scheme"]), carry)
