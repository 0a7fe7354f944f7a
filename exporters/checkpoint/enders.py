"""End tokens, gathered from every place that names one (known fault T6), and ids that mean "none"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge.errors import CheckpointError

# How converters and configs write that there is no such token: -1, also as an unsigned number of 32 bits.
NO_TOKEN = (-1, 2**32 - 1)


class Notes:
    """Remarks for the quality report, each once."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}

    def add(self, text: str) -> None:
        self._texts[text] = None

    def all(self) -> tuple[str, ...]:
        return tuple(self._texts)


class Enders:
    """End tokens and where each was found."""

    def __init__(self) -> None:
        self._found: dict[int, list[str]] = {}

    def add(self, token: int | None, place: str) -> None:
        if token is not None and place not in self._found.setdefault(token, []):
            self._found[token].append(place)

    def note_none(self, notes: Notes) -> None:
        """Say it where there is no end token at all."""
        if not self._found:
            notes.add("no token is known that ends a turn: answers go on until their limit")

    def all(self) -> dict[int, tuple[str, ...]]:
        """By ascending id."""
        return {token: tuple(self._found[token]) for token in sorted(self._found)}


def read_ids(value: Any, where: str, name: str, notes: Notes) -> list[int]:
    """Token ids written as null, one number or a list; those that mean "none" are left out and noted.

    Raises CheckpointError for anything else.
    """
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(item) is int and (item >= 0 or item in NO_TOKEN) for item in values):
        raise CheckpointError(f"{where}: {name}: {value!r} is no list of token ids")
    for item in values:
        if item in NO_TOKEN:
            notes.add(f"{where}: {name} is {item}, which means that there is none")
    return [item for item in values if item not in NO_TOKEN]


def check_enders(enders: Mapping[int, tuple[str, ...]], tokens: Mapping[str, int], where: str) -> None:
    """Raise CheckpointError for an end token that the vocabulary (spelling → id) does not have."""
    ids = set(tokens.values())
    wrong = next((token for token in enders if token not in ids), None)
    if wrong is not None:
        raise CheckpointError(
            f"{where}: the end token {wrong} (from {', '.join(enders[wrong])}) is not in the vocabulary, whose highest "
            f"id is {max(ids)}"
        )
