"""Looking into values and calling them.

Nothing of Python's own objects can be reached: the attributes are those that are listed here and in `strings`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError
from jinja2.utils import missing

from edge.template.strings import METHODS
from edge.template.text import cut, plain
from edge.template.values import Function, Namespace, kind, undefined
from edge.template.work import Work


class Group(tuple[Any, list[Any]]):
    """What the filter `groupby` gives: (grouper, list)."""

    __slots__ = ()


_DICT = ("copy", "get", "items", "keys", "values")
_LIST = ("copy", "count", "index")


def get_attribute(obj: Any, name: str) -> Any:
    """`obj.name` of a template: something of the object's kind, or else the entry of a dict."""
    found = own_attribute(obj, name)
    if found is not missing:
        return found
    if isinstance(obj, dict) and name in obj:
        return obj[name]
    return undefined(obj=obj, name=name)


def own_attribute(obj: Any, name: str) -> Any:
    """What the object's kind, not its entries, has under a name, or `missing`."""
    if isinstance(obj, str) and name in METHODS:
        return Function(partial(_method, METHODS[name], obj))
    if isinstance(obj, dict) and name in _DICT:
        return Function(partial(_dict_method, obj, name))
    if isinstance(obj, Group) and name in ("grouper", "list"):
        return obj[name == "list"]
    if isinstance(obj, (list, tuple)) and name in _LIST and hasattr(obj, name):
        return Function(partial(_list_method, obj, name))
    if isinstance(obj, (Function, Namespace)):
        return obj.attributes.get(name, missing)
    if isinstance(obj, Undefined):
        return obj[name]  # which says what is undefined
    if hasattr(type(obj), name):
        return Undefined(f"access to attribute {name!r} of {kind(obj)!r} object is unsafe.", obj, name, SecurityError)
    return missing


def _method(run: Callable[..., Any], text: str, work: Work, *args: Any, **kwargs: Any) -> Any:
    work.read(text)
    return run(work, text, *args, **kwargs)


def _dict_method(obj: dict[Any, Any], name: str, work: Work, *args: Any) -> Any:
    if name == "copy":
        work.spend(len(obj))
    for arg in args:
        work.read(arg)
    return getattr(dict(obj) if name == "copy" else obj, name)(*args)


def _list_method(obj: Sequence[Any], name: str, work: Work, *args: Any) -> Any:
    for value in (obj, *args):
        work.read(value)
    return getattr(obj, name)(*args)


def item(work: Work, obj: Any, key: Any) -> Any:
    """`obj[key]` of a template: an entry, or else something of the object's kind."""
    if isinstance(key, tuple):
        work.read(key)
    try:
        if isinstance(obj, str) and isinstance(key, int):
            return _letter(obj, key)
        if not isinstance(obj, (Function, Namespace)):
            return obj[key]
    except (TypeError, LookupError):
        pass
    found = own_attribute(obj, plain(key)) if isinstance(key, str) else missing
    return undefined(obj=obj, name=key) if found is missing else found


def sliced(work: Work, obj: Any, key: slice) -> Any:
    """`obj[start:stop:step]` of a template. Raises TypeError for what has no slices."""
    if isinstance(obj, str):
        work.make(len(obj))
        return cut(obj, key.start, key.stop, key.step)
    if isinstance(obj, (list, tuple)):
        work.spend(len(obj))
    elif not isinstance(obj, (range, Undefined)):  # which says what is undefined
        raise TypeError(f"{kind(obj)!r} object is not subscriptable")
    return obj[key]


def _letter(text: str, place: int) -> str:
    place = range(len(text))[place]
    return cut(text, place, place + 1)


def call(work: Work, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if isinstance(function, Function):
        work.spend(4)
        return function.call(work, args, kwargs)
    if isinstance(function, Undefined):
        return function(*args, **kwargs)  # which says what is undefined
    raise SecurityError(f"{kind(function)} is not safely callable")
