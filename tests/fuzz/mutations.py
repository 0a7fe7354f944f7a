"""Hostile variants of a valid input: of its bytes, and of the JSON document in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

# Counts and sizes at the edges of what fits, as they stand in a binary header.
EXTREMES = [0, 1, 0x7F, 0xFF, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**60, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
VALUES = st.one_of(
    st.sampled_from([None, True, False, -1, 0, 1, 3, 2**31 - 1, 2**31, 2**63, -(2**63), 10**400, 1e308, -0.5, 1e-320]),
    st.sampled_from(["", "\x00", "..", "/etc/passwd", "a" * 5000, "\ud800", "F8_E4M3", "U8", "BOOL", "int4-g32-zp"]),
    st.sampled_from([[], {}, [[]], [0], [2**62, 2**62], [-1], {"": {}}, [1, 2, 3, 4, 5, 6, 7, 8] * 40]),
    st.integers(0, 60).map(lambda depth: json.loads("[" * depth + "1" + "]" * depth)),
)
# (what to do, where as a share of the length, with what)
EDIT = st.tuples(
    st.sampled_from(["byte", "word", "long", "cut", "double", "drop"]), st.floats(0, 1), st.sampled_from(EXTREMES)
)
EDITS = st.lists(EDIT, min_size=1, max_size=4)
JSON_EDITS = st.lists(st.tuples(st.booleans(), st.integers(0, 1 << 20), VALUES), min_size=1, max_size=3)


def edit_bytes(data: bytes, edits: list[tuple[str, float, int]]) -> bytes:
    for kind, share, value in edits:
        at = int(share * len(data))
        width = {"byte": 1, "word": 4, "long": 8}.get(kind, 0)
        if width:
            data = data[:at] + (value % 256**width).to_bytes(width, "little") + data[at + width :]
        elif kind == "cut":
            data = data[:at]
        elif kind == "double":
            data = data[:at] + data[max(0, at - 40) :]
        else:
            data = data[:at] + data[at + 1 + value % 50 :]
    return data


def edit_json(document: Any, edits: list[tuple[bool, int, Any]]) -> Any:
    """Replace or remove values at chosen places."""
    for remove, place, value in edits:
        places = _places(document)
        path = places[place % len(places)]
        value = deepcopy(value)  # a list of VALUES is one object: put into itself it would never end
        if not path:
            document = value
            continue
        target = document
        for key in path[:-1]:
            target = target[key]
        if remove:
            del target[path[-1]]
        else:
            target[path[-1]] = value
    return document


def edit_document(data: bytes, edits: list[tuple[bool, int, Any]]) -> bytes:
    """Edit the JSON in an input: all of it, or where it goes on behind a NUL, the header of the safetensors file there
    (whose length is put right), or the document before the NUL, by turns."""
    if b"\0" not in data:
        return json.dumps(edit_json(json.loads(data), edits)).encode()
    config, _, file = data.partition(b"\0")
    if edits[0][1] % 2:
        return json.dumps(edit_json(json.loads(config), edits)).encode() + b"\0" + file
    length = int.from_bytes(file[:8], "little")
    header = json.dumps(edit_json(json.loads(file[8 : 8 + length]), edits)).encode()
    return config + b"\0" + len(header).to_bytes(8, "little") + header + file[8 + length :]


def _places(document: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a JSON document."""
    items: Any = ()
    if isinstance(document, dict | list):
        items = document.items() if isinstance(document, dict) else enumerate(document)
    found = [prefix]
    for key, value in items:
        found += _places(value, (*prefix, key))
    return found


def variants(seeds: Sequence[bytes], run: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """A function that gives `run` the variant of a seed which its bytes choose."""

    @given(seed=st.sampled_from(seeds), edits=EDITS, changes=st.none() | JSON_EDITS)
    @settings(deadline=None, database=None)
    def once(seed: bytes, edits: list[tuple[str, float, int]], changes: list[tuple[bool, int, Any]] | None) -> None:
        binary = seed[:4] == b"GGUF"
        run(edit_bytes(seed, edits) if binary or changes is None else edit_document(seed, changes))

    found: Callable[[bytes], object] = once.hypothesis.fuzz_one_input  # type: ignore[attr-defined]
    return found
