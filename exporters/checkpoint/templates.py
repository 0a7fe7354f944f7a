"""The chat templates of a source: one that is used unless said otherwise, and others by name, such as "tool_use".

A folder has them in chat_template.jinja and additional_chat_templates/NAME.jinja, in chat_template.json, or under
`chat_template` in tokenizer_config.json (a text, or a list of named ones). A GGUF file has them under
`tokenizer.chat_template` and `tokenizer.chat_template.NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edge import texts
from edge.errors import CheckpointError

DEFAULT = "default"
FILE = "chat_template.jinja"
FOLDER = "additional_chat_templates"
KEY = "tokenizer.chat_template"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # each becomes a file of the bundle


def from_folder(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """The templates of a folder by name; `settings` are those of tokenizer_config.json. A file counts before them.

    Raises CheckpointError for what is no template, and where there are some but none is the default.
    """
    found = _from_settings(folder / "tokenizer_config.json", settings.get("chat_template"))
    older = folder / "chat_template.json"
    if DEFAULT not in found and older.is_file():
        found |= _from_settings(older, _read(older, _template_of))
    if (folder / FILE).is_file():
        found[DEFAULT] = _read(folder / FILE, texts.read)
    if (folder / FOLDER).is_dir():
        found |= {path.stem: _read(path, texts.read) for path in sorted((folder / FOLDER).glob("*.jinja"))}
    return _checked(str(folder), found)


def from_metadata(path: Path, metadata: Mapping[str, Any]) -> dict[str, str]:
    """The templates of a GGUF file by name. Raises CheckpointError as `from_folder` does."""
    keys = [key for key in metadata if key == KEY or key.startswith(f"{KEY}.")]
    wrong = next((key for key in keys if not isinstance(metadata[key], str)), None)
    if wrong is not None:
        raise CheckpointError(f"{path}: {wrong} is no text")
    return _checked(str(path), {key.removeprefix(KEY)[1:] or DEFAULT: metadata[key] for key in keys})


def _checked(where: str, found: dict[str, str]) -> dict[str, str]:
    wrong = next((name for name in found if not _NAME.fullmatch(name)), None)
    if wrong is not None:
        raise CheckpointError(
            f"{where}: a chat template is named {wrong!r}; names have letters, digits, dashes and underscores"
        )
    if found and DEFAULT not in found:
        names = ", ".join(sorted(found))
        raise CheckpointError(f'{where}: no chat template is named "default" (there are: {names}); name one so')
    return found


def _from_settings(path: Path, value: Any) -> dict[str, str]:
    if value is None or isinstance(value, str):
        return {} if value is None else {DEFAULT: value}
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise CheckpointError(f"{path}: chat_template is neither a text nor a list of named texts")
    named = {item.get("name"): item.get("template") for item in value}
    wrong = next((name for name in named if not isinstance(name, str) or not isinstance(named[name], str)), None)
    if None in named or wrong is not None:
        raise CheckpointError(f"{path}: the chat template {wrong!r} is no text with a name")
    return named


def _template_of(path: Path) -> Any:
    data = texts.read_json(path)
    return data.get("chat_template") if isinstance(data, dict) else data


def _read(path: Path, reader: Callable[[Path], Any]) -> Any:
    try:
        return reader(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as text: {error}") from error
