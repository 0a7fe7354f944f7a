"""What a manifest tells of a bundle's origin, and of what its files are for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Artefact:
    """What a target of the exporter has made: files or folders of the bundle, and the runtimes that execute them."""

    files: tuple[str, ...]
    runtimes: tuple[str, ...]

    @classmethod
    def from_json(cls, data: Any) -> Artefact:
        """Raises ValueError, KeyError, TypeError or AttributeError for an ill-formed record."""
        found = cls(data["files"], data["runtimes"])
        for name, items in (("files", found.files), ("runtimes", found.runtimes)):
            if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
                raise ValueError(f"an artefact's {name} are no list of texts")
        return cls(tuple(found.files), tuple(found.runtimes))

    def lacks(self, files: Mapping[str, Any]) -> str | None:
        """The first file or folder that is not among a manifest's files."""
        for name in self.files:
            if name not in files and not any(file.startswith(f"{name}/") for file in files):
                return name
        return None


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a bundle's weights: its name, and the SHA-256 of each file that held tensors.

    `revision` and `license` are None where the source does not tell them.
    """

    name: str
    revision: str | None = None
    license: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: Any) -> Origin:
        """Raises ValueError, KeyError, TypeError or AttributeError for an ill-formed record."""
        found = cls(data["name"], data.get("revision"), data.get("license"), data.get("files", {}))
        optional = [text for text in (found.revision, found.license) if text is not None]
        if not isinstance(found.files, dict) or not all(
            isinstance(text, str) for text in (found.name, *optional, *found.files.values())
        ):
            raise ValueError("the origin's name, revision, license and files must be texts")
        return found
