"""The filters of templates: jinja2's, except those that make HTML or wrap lines (`safe` and `escape` are kept).

What jinja2 gives as a generator is an iterator here too: true, of no length, and read once.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import groupby
from typing import Any, Literal

from jinja2 import Undefined
from jinja2 import filters as jinja
from jinja2.exceptions import FilterArgumentError
from jinja2.utils import missing

from edge.template.access import Group, item, own_attribute
from edge.template.formatting import format_percent
from edge.template.operators import add
from edge.template.predicates import PREDICATES
from edge.template.strings import METHODS
from edge.template.text import cut
from edge.template.text_filters import center, escaped, indented, of_string, replaced, titled, to_json, truncated
from edge.template.values import items, to_text, undefined
from edge.template.work import Work

_PRECISION = 300


def of_jinja(own: Callable[..., Any]) -> Callable[..., Any]:
    """A filter of jinja2's that makes a number of a value, or picks one of two."""

    def run(work: Work, value: Any, *args: Any, **kwargs: Any) -> Any:
        work.make(len(value) if isinstance(value, str) else 0)
        return own(value, *args, **kwargs)

    return run


def joined(work: Work, value: Any, d: Any = "", attribute: str | int | None = None) -> str:
    get = _getter(work, attribute)
    parts = [to_text(work, get(part)) for part in items(work, value)]
    text: str = METHODS["join"](work, to_text(work, d), parts)
    return text


def first(work: Work, value: Any) -> Any:
    if isinstance(value, str):
        return cut(value, 0, 1) if value else undefined("No first item, sequence was empty.")
    return next(iter(value), undefined("No first item, sequence was empty."))


def last(work: Work, value: Any) -> Any:
    if isinstance(value, str):
        return cut(value, len(value) - 1, None) if value else undefined("No last item, sequence was empty.")
    return next(iter(reversed(value)), undefined("No last item, sequence was empty."))


def reversed_(work: Work, value: Any) -> Any:
    if isinstance(value, str):
        work.make(len(value))
        return cut(value, None, None, -1)
    return iter(items(work, value)[::-1])


def rounded(work: Work, value: Any, precision: int = 0, method: Literal["common", "ceil", "floor"] = "common") -> Any:
    if abs(precision) > _PRECISION:
        raise FilterArgumentError(f"a precision of {precision} is out of range")
    return jinja.do_round(value, precision, method)


def urlencode(work: Work, value: Any) -> str:
    work.measure(value)
    text = jinja.do_urlencode(value)
    work.make(len(text))
    return text


def attribute_of(work: Work, value: Any, name: str) -> Any:
    found = own_attribute(value, name)
    return undefined(obj=value, name=name) if found is missing else found


def pairs(work: Work, value: Any) -> Iterator[Any]:
    if isinstance(value, Undefined):
        return iter(())
    if not isinstance(value, Mapping):
        raise TypeError("Can only get item pairs from a mapping.")
    return iter(items(work, value.items()))


def batch(work: Work, value: Any, linecount: int, fill_with: Any = None) -> Iterator[Any]:
    work.spend(max(linecount, 0))
    return iter(list(jinja.do_batch(items(work, value), linecount, fill_with)))


def sliced(work: Work, value: Any, slices: int, fill_with: Any = None) -> Iterator[Any]:
    work.spend(max(slices, 0))
    return iter(list(jinja.sync_do_slice(items(work, value), slices, fill_with)))


def total(work: Work, value: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    if isinstance(start, str):
        raise TypeError("sum() can't sum strings [use ''.join(seq) instead]")
    get = _getter(work, attribute)
    for each in items(work, value):
        work.spend(1)
        start = add(work, start, get(each))
    return start


def any_of(work: Work, value: Any) -> Any:
    if not len(value):
        return undefined("No random item, sequence was empty.")
    return item(work, value, random.randrange(len(value)))


def dictsort(work: Work, value: Any, case_sensitive: bool = False, by: str = "key", reverse: bool = False) -> list[Any]:
    _pay_order(work, value)
    return jinja.do_dictsort(value, case_sensitive, by, reverse)  # type: ignore[arg-type]


def sort(
    work: Work, value: Any, reverse: bool = False, case_sensitive: bool = False, attribute: str | int | None = None
) -> list[Any]:
    names = attribute.split(",") if isinstance(attribute, str) else [attribute]
    getters = [_getter(work, name, fold=not case_sensitive) for name in names]
    found = _pay_order(work, items(work, value))
    return sorted(found, key=lambda each: [get(each) for get in getters], reverse=reverse)


def unique(work: Work, value: Any, case_sensitive: bool = False, attribute: str | int | None = None) -> Iterator[Any]:
    get = _getter(work, attribute, fold=not case_sensitive)
    seen: dict[Any, Any] = {}
    for each in _pay_order(work, items(work, value)):
        seen.setdefault(get(each), each)
    return iter(list(seen.values()))


def extreme(pick: Callable[..., Any]) -> Callable[..., Any]:
    """min and max."""

    def run(work: Work, value: Any, case_sensitive: bool = False, attribute: str | int | None = None) -> Any:
        found = _pay_order(work, items(work, value))
        key = _getter(work, attribute, fold=not case_sensitive)
        return pick(found, key=key) if found else undefined("No aggregated item, sequence was empty.")

    return run


def grouped(
    work: Work, value: Any, attribute: str | int, default: Any = None, case_sensitive: bool = False
) -> list[Group]:
    key = _getter(work, attribute, default, fold=not case_sensitive)
    name = _getter(work, attribute, default)
    found = sorted(_pay_order(work, items(work, value)), key=key)
    groups = [list(group) for _, group in groupby(found, key)]
    return [Group((name(group[0]), group)) for group in groups]


def _pay_order(work: Work, found: Any) -> Any:
    for _ in range(len(found).bit_length()):
        work.measure(found)
    return found


def _getter(
    work: Work, attribute: str | int | None, default: Any = None, *, fold: bool = False
) -> Callable[[Any], Any]:
    """What looks up `a.b.0` in a value; `fold`: in small letters, to compare."""
    parts = attribute.split(".") if isinstance(attribute, str) else () if attribute is None else (attribute,)
    path: list[Any] = [int(part) if isinstance(part, str) and part.isdigit() else part for part in parts]

    def get(value: Any) -> Any:
        work.spend(len(path))
        for part in path:
            value = item(work, value, part)
            if default is not None and isinstance(value, Undefined):
                value = default
        return value.lower() if fold and isinstance(value, str) else value

    return get


def mapped(work: Work, value: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
    if not args and "attribute" in kwargs:
        attribute, default = kwargs.pop("attribute"), kwargs.pop("default", None)
        if kwargs:
            raise FilterArgumentError(f"Unexpected keyword argument {next(iter(kwargs))!r}")
        get = _getter(work, attribute, default)
        return iter([get(each) for each in items(work, value)])
    if not args:
        raise FilterArgumentError("map requires a filter argument")
    run = find(args[0])
    made = []
    for each in items(work, value):
        work.spend(1)
        made.append(run(work, each, *args[1:], **kwargs))
    return iter(made)


def chosen(work: Work, value: Any, *args: Any, by_attribute: bool, wanted: bool, **kwargs: Any) -> Iterator[Any]:
    """select, reject, selectattr and rejectattr."""
    if by_attribute and not args:
        raise FilterArgumentError("Missing parameter for attribute name")
    get = _getter(work, args[0] if by_attribute else None)
    name, *rest = args[by_attribute:] or (None,)
    kept = []
    for each in items(work, value) if value else ():
        work.spend(1)
        held = find_test(name)(work, get(each), *rest, **kwargs) if name is not None else get(each)
        if bool(held) is wanted:
            kept.append(each)
    return iter(kept)


def find(name: str) -> Callable[..., Any]:
    """Raises FilterArgumentError for a name that no filter has."""
    if name not in FILTERS:
        raise FilterArgumentError(f"No filter named {name!r}.")
    return FILTERS[name]


def find_test(name: str) -> Callable[..., Any]:
    """Raises FilterArgumentError for a name that no test has."""
    if name not in TESTS:
        raise FilterArgumentError(f"No test named {name!r}.")
    return TESTS[name]


FILTERS: dict[str, Callable[..., Any]] = {
    "abs": lambda work, value: abs(value),
    "attr": attribute_of,
    "batch": batch,
    "capitalize": of_string("capitalize"),
    "center": center,
    "count": lambda work, value: len(value),
    "d": of_jinja(jinja.do_default),
    "default": of_jinja(jinja.do_default),
    "dictsort": dictsort,
    "e": escaped,
    "escape": escaped,
    "filesizeformat": of_jinja(jinja.do_filesizeformat),
    "first": first,
    "float": of_jinja(jinja.do_float),
    "forceescape": escaped,
    "format": lambda work, value, *args, **kwargs: format_percent(work, to_text(work, value), kwargs or args),
    "groupby": grouped,
    "indent": indented,
    "int": of_jinja(jinja.do_int),
    "items": pairs,
    "join": joined,
    "last": last,
    "length": lambda work, value: len(value),
    "list": items,
    "lower": of_string("lower"),
    "map": mapped,
    "max": extreme(max),
    "min": extreme(min),
    "random": any_of,
    "reject": partial(chosen, by_attribute=False, wanted=False),
    "rejectattr": partial(chosen, by_attribute=True, wanted=False),
    "replace": replaced,
    "reverse": reversed_,
    "round": rounded,
    "safe": to_text,
    "select": partial(chosen, by_attribute=False, wanted=True),
    "selectattr": partial(chosen, by_attribute=True, wanted=True),
    "slice": sliced,
    "sort": sort,
    "string": to_text,
    "sum": total,
    "title": titled,
    "tojson": to_json,
    "trim": of_string("strip"),
    "truncate": truncated,
    "unique": unique,
    "upper": of_string("upper"),
    "urlencode": urlencode,
    "wordcount": lambda work, value: len(re.findall(r"\w+", to_text(work, value))),
}
TESTS = {**PREDICATES, "filter": lambda work, value: value in FILTERS}
