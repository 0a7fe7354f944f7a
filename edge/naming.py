"""What people call models: names in any case, common names of other programs, repositories of the Hugging Face hub."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

from edge.catalog import Catalog, Hub

# org/repo, or a GGUF file of one: org/repo/FILE.gguf. What begins with a dot, a slash or ~ is a path.
_REPOSITORY = re.compile(r"([A-Za-z0-9][\w.-]{0,95})/([A-Za-z0-9][\w.-]{0,95})(?:/([\w.-]+\.gguf))?", re.ASCII)
_BETWEEN = "--"  # the parts of a repository in a model's name


def canonical(text: str, stored: Iterable[str], catalog: Catalog) -> str:
    """The name in the store or the catalogue that the text means; for a repository, what its model is called here.

    A text that means none of them comes back as it is.
    """
    stored = list(stored)
    if text in stored or text in catalog.models:
        return text
    known = {
        other: model.name
        for model in catalog.models.values()
        for other in (*model.aliases, *_repositories(model.sources))
    }
    known |= {name: name for name in [*catalog.models, *stored]}
    folded = {other.casefold(): name for other, name in known.items()}
    if is_repository(text) and text.casefold() not in folded:
        text = repository_name(text)
    return folded.get(text.casefold(), text)


def _repositories(sources: Iterable[object]) -> list[str]:
    return [source.repo for source in sources if isinstance(source, Hub) and source.file is None]


def is_repository(text: str) -> bool:
    """Whether the text names a repository of the hub, or a file of one, and no path in a folder that is here."""
    found = _REPOSITORY.fullmatch(text)
    return bool(found) and not text.endswith(".dsedge") and not Path(text.partition("/")[0]).exists()


def split_repository(text: str) -> tuple[str, str | None]:
    """The repository and the file that a text names for which `is_repository` holds."""
    found = _REPOSITORY.fullmatch(text)
    assert found
    return f"{found[1]}/{found[2]}", found[3]


def repository_name(text: str) -> str:
    """What the model of a repository is called in the store: `org--repo`."""
    return text.removesuffix(".gguf").replace("/", _BETWEEN)


def suggestion(text: str, stored: Iterable[str], catalog: Catalog) -> str:
    """ "; did you mean …?" with the names that look like the text, or nothing."""
    known = {name.casefold(): name for model in catalog.models.values() for name in (*model.aliases, model.name)}
    known |= {name.casefold(): name for name in stored}
    close = difflib.get_close_matches(text.casefold(), known, n=3)
    close += [name for name in sorted(known) if text and name.startswith(text.casefold()) and name not in close][:3]
    return f"; did you mean {' or '.join(known[name] for name in close)}?" if close else ""
