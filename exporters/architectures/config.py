"""Reading a config.json with every value's kind checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge.errors import CheckpointError


class Config:
    """Typed access to a config. A key that is absent or null has the family's default, or the one given here.

    Every method raises CheckpointError naming the key for a value of another kind, or for none where one is needed.
    """

    def __init__(self, path: str, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.path = path
        self._values = values
        self._defaults = defaults

    def get(self, name: str, default: Any = None) -> Any:
        """The raw value. An explicit null counts as a value where the family's default is not null."""
        if name in self._values:
            value = self._values[name]
            return default if value is None else value
        known = self._defaults.get(name)
        return default if known is None else known

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if type(value) is not int or not 0 < value < 2**31:
            raise self.wrong(name, value, "a positive whole number")
        return value

    def optional_integer(self, name: str) -> int | None:
        return None if self.get(name) is None else self.integer(name)

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
            raise self.wrong(name, value, "a positive number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, value, "a text")
        return value

    def table(self, name: str) -> Mapping[str, Any] | None:
        value = self.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(name, value, "a table of settings")
        return value

    def wrong(self, name: str, value: Any, wanted: str) -> CheckpointError:
        found = "missing" if value is None else f"{value!r}"
        return CheckpointError(f"{self.path}: {name} in the model's config is {found}; it must be {wanted}")
