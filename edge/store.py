"""The local store: bundles by name, as `NAME.dsedge` in the user's data folder.

It knows names and folders, not what is in a bundle. A bundle gets here by being exported or renamed into place, so
whatever the store lists is whole.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from edge.catalog import NAME, Catalog, load_catalog
from edge.errors import NotFoundError, OptionError, StorageError
from edge.files import make_writable, remove_tree
from edge.naming import canonical, is_repository, suggestion
from edge.paths import data_folder, expanded

SUFFIX = ".dsedge"
# Devices on Windows, whatever follows a dot.
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


def check_name(name: str) -> str:
    """The name itself. Raises OptionError unless it is fit to be a folder's name on every system."""
    if not _fits(name):
        raise OptionError(
            f"{name!r} cannot name a model: use letters, digits, '.', '_' and '-', starting with a letter or digit, "
            f"at most 100 of them, without {SUFFIX} at the end, and no name of a Windows device such as con"
        )
    return name


def _fits(name: str) -> bool:
    return bool(NAME.fullmatch(name)) and not name.endswith((".", SUFFIX)) and not _DEVICES.fullmatch(name)


def folder() -> Path:
    """Where the bundles lie; it need not exist yet."""
    return data_folder() / "models"


def bundle_path(name: str) -> Path:
    """Where the bundle of that name is, or would be. Raises OptionError for what cannot be a name."""
    return folder() / (check_name(name) + SUFFIX)


def place(name: str) -> Path:
    """Where to write the bundle of that name; makes the store's folder. Raises StorageError if it cannot."""
    path = bundle_path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{path.parent}: cannot be made: {error.strerror}; set DSEDGE_HOME to another folder"
        ) from error
    return path


def names() -> list[str]:
    """The names in the store, sorted. Raises StorageError if it cannot be read."""
    try:
        found = [path for path in folder().iterdir() if path.name.endswith(SUFFIX) and path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StorageError(f"{folder()}: cannot be read: {error.strerror}; see DSEDGE_HOME") from error
    return sorted(name for name in (path.name.removesuffix(SUFFIX) for path in found) if _fits(name))


def resolve(name_or_path: str | Path) -> Path:
    """The folder of a bundle, given by path or by its name in the store, in any case.

    A path is a Path, or a text with a separator in it or `.dsedge` at its end, or the name of a folder here that the
    store does not know; a repository of the hub that was pulled comes before a path that is not there. Raises
    NotFoundError saying what is there, or how to get it.
    """
    text = str(name_or_path)
    separators = {"/", os.sep}
    name = text if isinstance(name_or_path, Path) else canonical(text, names(), load_catalog())
    if isinstance(name_or_path, Path) or text.endswith(SUFFIX) or any(sep in text for sep in separators):
        path = expanded(text)
        if path.is_dir():
            return path
        if name in names():
            return bundle_path(name)
        if name != text:
            raise NotFoundError(f"{path}: no bundle there; `dsedge pull {text}` looks for it on the Hugging Face hub")
        raise NotFoundError(_hint(f"{path}: no bundle there; `dsedge export SOURCE -o {path.name}` writes one", text))
    if name in names():
        return bundle_path(name)
    if text and Path(text).is_dir():
        return Path(text)
    raise NotFoundError(_missing(text))


def to_pull(text: str) -> bool:
    """Whether the text names a model that the store lacks and that a pull can get."""
    catalog = load_catalog()
    name = canonical(text, names(), catalog)
    return name not in names() and (name in catalog.models or (is_repository(text) and not expanded(text).is_dir()))


def remove(text: str) -> str:
    """Remove a model from the store, called as `resolve` takes it; its name. It disappears in one step.

    Raises NotFoundError for a name that is not there and StorageError if the system refuses.
    """
    name = canonical(text, names(), load_catalog())
    path = bundle_path(name)
    if not path.is_dir():
        near = suggestion(text, names(), Catalog("", {}))
        raise NotFoundError(f"the store has no model {name!r}; it has {_listed(names())}{near}")
    try:
        hidden = tempfile.mkdtemp(prefix=".removed-", dir=path.parent)
        if not path.is_symlink():
            make_writable(path)  # a protected folder can be neither moved nor removed
        try:
            os.replace(path, Path(hidden) / path.name)
        finally:
            remove_tree(Path(hidden))
    except OSError as error:
        raise StorageError(f"{path}: cannot be removed: {error.strerror}") from error
    return name


def _missing(name: str) -> str:
    catalog = load_catalog()
    known = canonical(name, (), catalog)
    if known in catalog.models:
        return f"model {known!r} is not in the store; `dsedge pull {known}` gets it"
    message = f"no model {name!r}"
    hinted = _hint(message, name)
    if hinted != message:
        return hinted
    near = suggestion(name, names(), catalog)
    return message + (near or f"; the store has {_listed(names())}, the catalogue {_listed(sorted(catalog.models))}")


def _hint(message: str, name: str) -> str:
    """The message, and what to do where the name looks like a prompt."""
    if not any(character.isspace() for character in name):
        return message
    return f"{message}; MODEL comes before the prompt: dsedge run {load_catalog().default} PROMPT"


def _listed(items: list[str]) -> str:
    return ", ".join(items) or "none"
