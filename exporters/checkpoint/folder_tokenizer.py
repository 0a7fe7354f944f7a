"""The tokenizer of a Hugging Face folder: tokenizer.json, its config and chat template, and every end token."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from edge import texts
from edge.errors import BundleError, CheckpointError
from edge.tokenizer import read_json
from exporters.checkpoint import TokenizerFiles
from exporters.checkpoint.added_tokens import keep_text

SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def read_tokenizer(folder: Path, config: Mapping[str, Any]) -> TokenizerFiles:
    """Read a folder's tokenizer. Raises CheckpointError when it is missing or names tokens that it does not have."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            f"{folder}: no tokenizer.json; make one with transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    text = _text(path)
    tokenizer = load_tokenizer(text, path)
    settings = _optional_json(folder / "tokenizer_config.json")
    special = _special(folder, settings)
    bos = _token_id(tokenizer, special, "bos_token", path)
    if bos is None and "bos_token" not in settings:
        bos = next(iter(_ids(config.get("bos_token_id"), folder / "config.json")), None)
    generation = folder / "generation_config.json"
    eos = {
        *_ids(_optional_json(generation).get("eos_token_id"), generation),
        *_ids(config.get("eos_token_id"), folder / "config.json"),
    }
    own = _token_id(tokenizer, special, "eos_token", path)
    eos |= set() if own is None else {own}
    return TokenizerFiles(
        tokenizer=keep_text(text, tokenizer),
        chat_template=_chat_template(folder, settings),
        bos=bos,
        eos=tuple(sorted(eos)),
        special=special,
        add_bos=_adds_bos(tokenizer, bos),
    )


def load_tokenizer(text: str, where: Path) -> Tokenizer:
    """Parse the text of a tokenizer.json. Raises CheckpointError if the tokenizers library refuses it."""
    try:
        return read_json(text)
    except BundleError as error:
        raise CheckpointError(f"{where}: {error}") from error


def _text(path: Path) -> str:
    try:
        return texts.read(path)
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read as text: {error}") from error


def _optional_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = texts.parse_json(_text(path))
    except ValueError as error:
        raise CheckpointError(f"{path}: no JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: holds no JSON object")
    return data


def _special(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """The `*_token` variables of a template; older folders keep them in special_tokens_map.json alone."""
    older = _optional_json(folder / "special_tokens_map.json")
    special: dict[str, str] = {}
    for name in SPECIAL:
        value = settings[name] if name in settings else older.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            special[name] = value
        elif value is not None:
            raise CheckpointError(f"{folder / 'tokenizer_config.json'}: {name} is {value!r}, which is no token")
    return special


def _token_id(tokenizer: Tokenizer, special: Mapping[str, str], name: str, path: Path) -> int | None:
    if name not in special:
        return None
    found: int | None = tokenizer.token_to_id(special[name])
    if found is None:
        raise CheckpointError(f"{path}: {name} is {special[name]!r}, which is not in the vocabulary")
    return found


def _ids(value: Any, path: Path) -> list[int]:
    """Token ids written as null, one number or a list."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(item) is int and item >= 0 for item in values):
        raise CheckpointError(f"{path}: {value!r} is no list of token ids")
    return values


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, or the tokenizer config's template: a string, or a list with one named "default"."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return _text(path)
    template = settings.get("chat_template")
    if template is None or isinstance(template, str):
        return template
    where = folder / "tokenizer_config.json"
    if not isinstance(template, list) or not all(isinstance(item, dict) for item in template):
        raise CheckpointError(f"{where}: chat_template is neither a text nor a list of named texts")
    named = {item.get("name"): item.get("template") for item in template}
    found = named.get("default")
    if not isinstance(found, str):
        names = ", ".join(map(str, named)) or "none"
        raise CheckpointError(f'{where}: no chat template is named "default" (there are: {names}); name one so')
    return found


def _adds_bos(tokenizer: Tokenizer, bos: int | None) -> bool:
    """What tokenizer.json does by itself: where there is one, transformers too ignores the config's add_bos_token."""
    if bos is None:
        return False
    ids: list[int] = tokenizer.encode("a", add_special_tokens=True).ids
    return ids[:1] == [bos] and tokenizer.encode("a", add_special_tokens=False).ids[:1] != [bos]
