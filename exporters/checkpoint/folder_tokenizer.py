"""The tokenizer of a Hugging Face folder: tokenizer.json, its config and chat template, and every end token."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from edge import texts
from edge.errors import CheckpointError, found_in
from edge.tokenizer import read_json
from exporters.checkpoint import TokenizerFiles
from exporters.checkpoint.added_tokens import add_turn_ends, check_spelling, keep_text
from exporters.checkpoint.enders import Enders, Notes, check_enders, read_ids
from exporters.checkpoint.marks import find_marks, render
from exporters.checkpoint.templates import DEFAULT, from_folder
from exporters.checkpoint.tokenizer_class import add_named_tokens, apply_class

SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def read_tokenizer(folder: Path, config: Mapping[str, Any]) -> TokenizerFiles:
    """Read a folder's tokenizer. Raises CheckpointError when it is missing or names tokens that it does not have."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            f"{folder}: no tokenizer.json; make one with transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    settings = _optional_json(folder / "tokenizer_config.json")
    special = _special(folder, settings)
    notes = Notes()
    text = _as_loaded(path, settings, special, config.get("model_type"), notes)
    tokenizer = load_tokenizer(text, path)
    check_spelling(tokenizer, path)
    bos = _token_id(tokenizer, special, "bos_token", path)
    if bos is None and "bos_token" not in settings:
        bos = next(iter(read_ids(config.get("bos_token_id"), "config.json", "bos_token_id", notes)), None)
    templates = from_folder(folder, settings)
    rendered = render(str(folder), templates, special, notes)
    _check_marks(tokenizer, find_marks(rendered), path)
    enders = _enders(folder, config, tokenizer, {**settings, **special}, notes)
    add_turn_ends(enders, rendered, tokenizer, bos)
    enders.note_none(notes)
    check_enders(enders.all(), tokenizer.get_vocab(), str(folder))
    return TokenizerFiles(
        tokenizer=keep_text(text, tokenizer),
        chat_template=templates.pop(DEFAULT, None),
        bos=bos,
        special=special,
        add_bos=_adds_bos(tokenizer, bos),
        enders=enders.all(),
        chat_templates=templates,
        notes=notes.all(),
    )


def _as_loaded(
    path: Path, settings: Mapping[str, Any], special: Mapping[str, str], model_type: object, notes: Notes
) -> str:
    """The text of tokenizer.json, changed where transformers would not take it as it is."""
    text = _text(path)
    load_tokenizer(text, path)
    try:
        data = texts.parse_json(text)
    except ValueError as error:  # the tokenizers library accepts such a file
        raise CheckpointError(f"{path}: no JSON: {error}") from error
    changed = [apply_class(data, settings, model_type, notes), add_named_tokens(data, settings, special, notes)]
    return json.dumps(data, ensure_ascii=False) if any(changed) else text


def _check_marks(tokenizer: Tokenizer, marks: set[str], path: Path) -> None:
    """Raise CheckpointError for a token that a template writes as a mark and that text would be cut into pieces at."""
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for mark in sorted(marks - added):
        index = tokenizer.token_to_id(mark)
        if index is not None and tokenizer.encode(mark, add_special_tokens=False).ids != [index]:
            raise CheckpointError(
                f"{path}: the chat template writes {mark}, which is token {index}, but text with it is cut into "
                "pieces: it is no added token there; add it to added_tokens as a special token"
            )


def _enders(
    folder: Path, config: Mapping[str, Any], tokenizer: Tokenizer, settings: Mapping[str, Any], notes: Notes
) -> Enders:
    """The end tokens that the folder's files name: of a text, a turn, a message to a tool."""
    enders = Enders()
    generation = _optional_json(folder / "generation_config.json")
    for key in ("eos_token_id", "eot_token_id", "eom_token_id"):
        for values, name in ((generation, "generation_config.json"), (config, "config.json")):
            for token in read_ids(values.get(key), name, key, notes):
                enders.add(token, name if key == "eos_token_id" else f"{name} ({key})")
    for key in ("eos_token", "eot_token", "eom_token"):
        named = {key: text} if (text := _spelling(settings.get(key))) is not None else {}
        enders.add(_token_id(tokenizer, named, key, folder / "tokenizer_config.json"), f"tokenizer_config.json ({key})")
    return enders


def _spelling(value: Any) -> str | None:
    """A token written as a text or as a table with its flags."""
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None


def load_tokenizer(text: str, where: Path) -> Tokenizer:
    """Parse the text of a tokenizer.json. Raises CheckpointError if the tokenizers library refuses it."""
    with found_in(CheckpointError, where):
        return read_json(text)


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


def _adds_bos(tokenizer: Tokenizer, bos: int | None) -> bool:
    """What tokenizer.json does by itself: where there is one, transformers too ignores the config's add_bos_token."""
    if bos is None:
        return False
    ids: list[int] = tokenizer.encode("a", add_special_tokens=True).ids
    return ids[:1] == [bos] and tokenizer.encode("a", add_special_tokens=False).ids[:1] != [bos]
