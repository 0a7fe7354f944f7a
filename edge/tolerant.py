"""Frozen records read from JSON that a later version may have added to: further keys are passed over.

What is there is checked against the annotations of the record's fields: records, tables by name, lists, texts, numbers,
and whole numbers, which are counts here. Every fault is a ValueError.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
_SCALARS: dict[Any, tuple[Any, str]] = {str: (str, "text"), int: (int, "count"), float: (int | float, "number")}


def read(kind: type[Record], data: Any) -> Record:
    """A dataclass from its JSON. Raises ValueError for what is none, a missing field without a default included."""
    if not isinstance(data, dict):
        raise ValueError(f"{kind.__name__} is {type(data).__name__}, no table")
    hints = _hints(kind)  # type: ignore[arg-type]
    values = {name: _value(hints[name], value, name) for name, value in data.items() if name in hints}
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {item.name: hints[item.name] for item in fields(kind)}


def _value(hint: Any, value: Any, name: str) -> Any:
    if hint in (str, int, float):
        return _scalar(hint, value, name)
    if is_dataclass(hint):
        return read(cast(type[Any], hint), value)
    inner = get_args(hint)
    if isinstance(hint, types.UnionType):
        (other,) = (item for item in inner if item is not type(None))
        return None if value is None else _value(other, value, name)
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} is {type(value).__name__}, no list")
        return tuple(_value(inner[0], item, name) for item in value)
    assert get_origin(hint) is Mapping, f"{name}: {hint}"
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {type(value).__name__}, no table")
    return {key: _value(inner[1], item, f"{name}.{key}") for key, item in value.items()}


def _scalar(hint: Any, value: Any, name: str) -> Any:
    kind, called = _SCALARS[hint]
    if not isinstance(value, kind) or isinstance(value, bool) or (kind is int and value < 0):
        raise ValueError(f"{name} is {value!r}, no {called}")
    return value
