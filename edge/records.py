"""Frozen records as JSON values and back, checked field by field: what is read may come from a hostile file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from edge.errors import FormatError

_SCALARS: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}


def read_record(kind: type[Any], data: Mapping[str, Any]) -> Any:
    """A dataclass from its fields. Raises FormatError for an unknown field or a scalar of another type, TypeError for
    a missing field. An integer is taken for a float, never a bool for a number.
    """
    known = {field.name: str(field.type) for field in fields(kind)}
    for name, value in data.items():
        if name not in known:
            raise FormatError(f"decoder spec: unknown field {name!r} in {kind.__name__}")
        wanted = known[name].split(" | ")[0]
        scalar = _SCALARS.get(wanted)
        if scalar is None or (value is None and known[name].endswith("| None")):
            continue
        if scalar is float and isinstance(value, int) and not isinstance(value, bool):
            continue
        if not isinstance(value, scalar) or isinstance(value, bool) != (scalar is bool):
            raise FormatError(f"decoder spec: {name} is {value!r}, which is no {wanted}")
    return kind(**data)


def is_real(value: float) -> bool:
    """Whether a JSON number is finite and fits float32: Python's reader takes NaN, Infinity and any integer."""
    return -3e38 <= value <= 3e38


def check_sizes(record: object, *names: str) -> None:
    """Raise FormatError unless each of these fields is a size: 1 to 2³¹ - 1."""
    for name in names:
        value = getattr(record, name)
        if not 0 < value < 2**31:
            raise FormatError(f"decoder spec: {name} is {value}, which is not a size")


def check_choice(record: object, name: str, known: tuple[Any, ...]) -> None:
    """Raise FormatError unless a field is one of the known names."""
    if getattr(record, name) not in known:
        raise FormatError(f"decoder spec: {name} {getattr(record, name)!r}; known: {', '.join(known)}")


def check_real(record: object, *names: str) -> None:
    """Raise FormatError unless each of these fields is a finite number."""
    for name in names:
        if not is_real(getattr(record, name)):
            raise FormatError(f"decoder spec: {name} is {getattr(record, name)}, which is no finite number")


def check_positive(record: object, *names: str) -> None:
    """Raise FormatError unless each of these fields is a positive number that float32 can multiply and divide by."""
    for name in names:
        value = getattr(record, name)
        if not 1e-30 <= value <= 1e30:
            raise FormatError(f"decoder spec: {name} is {value}; it must be a positive number")


def check_softcap(record: object, name: str) -> None:
    """Raise FormatError unless a field is None or a cap that tanh can be scaled to."""
    if getattr(record, name) is not None:
        check_positive(record, name)
