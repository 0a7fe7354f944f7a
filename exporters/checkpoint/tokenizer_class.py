"""What transformers' tokenizer classes change in a tokenizer.json when they load it.

Most take it as it is. LlamaTokenizer takes its vocabulary and merges alone and decides anew where spaces are put:
`add_prefix_space` and `legacy` of tokenizer_config.json say whether a space goes before every text between two added
tokens, before the first one, or before none. GPT2Tokenizer and Qwen2Tokenizer look at `add_prefix_space` alone. Every
class adds the tokens that tokenizer_config.json names and that the file lacks. Facts: transformers 5's LlamaTokenizer,
Qwen2Tokenizer, AutoTokenizer and TokenizersBackend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from exporters.checkpoint.enders import Notes

_SPACE = "\u2581"
# Model types for which AutoTokenizer takes the file as it is, or one class, whatever class the folder names.
_AS_WRITTEN = ("granite", "ministral", "mistral", "olmo2", "olmo3", "phi3")
_OWN_CLASS = {"qwen2": "Qwen2Tokenizer"}
_FLAGS = ("lstrip", "normalized", "rstrip", "single_word")


def apply_class(data: dict[str, Any], settings: Mapping[str, Any], model_type: object, notes: Notes) -> bool:
    """Change the content of a tokenizer.json as the class does that tokenizer_config.json names; whether it changed."""
    named = _OWN_CLASS.get(str(model_type)) or str(settings.get("tokenizer_class")).removesuffix("Fast")
    if model_type in _AS_WRITTEN:
        return False
    if named == "LlamaTokenizer" and _is_sentencepiece(data):
        return _put_spaces(data, settings, notes)
    return named in ("GPT2Tokenizer", "Qwen2Tokenizer") and _put_first_space(data, settings, notes)


def _is_sentencepiece(data: Mapping[str, Any]) -> bool:
    """BPE over SentencePiece's pieces; a byte-level file is taken as it is."""
    model = data.get("model")
    is_bpe = isinstance(model, dict) and model.get("type") == "BPE"
    kinds = [step.get("type") for component in ("pre_tokenizer", "decoder") for step in _steps(data.get(component))]
    return is_bpe and "ByteLevel" not in kinds


def _steps(component: Any) -> Iterator[dict[str, Any]]:
    """A component of a tokenizer.json that may be one step or a sequence of them."""
    if isinstance(component, dict):
        yield component
        for key in ("pretokenizers", "decoders", "normalizers"):
            for step in component.get(key) or ():
                yield from _steps(step)


def _put_spaces(data: dict[str, Any], settings: Mapping[str, Any], notes: Notes) -> bool:
    prefix = settings.get("add_prefix_space")
    scheme = "never" if prefix is False else "always" if settings.get("legacy") else "first"
    spaces = {"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": scheme, "split": False}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if scheme != "never":
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    components = {"normalizer": None, "pre_tokenizer": spaces, "decoder": {"type": "Sequence", "decoders": decoders}}
    if all(data.get(name) == component for name, component in components.items()):
        return False
    data |= components
    flag = "add_prefix_space" if prefix is False else "legacy"
    notes.add(
        f"spaces: tokenizer_config.json ({flag} {settings.get(flag)}) puts a space before the text {scheme}, as "
        "LlamaTokenizer does, and tokenizer.json says otherwise"
    )
    return True


def _put_first_space(data: dict[str, Any], settings: Mapping[str, Any], notes: Notes) -> bool:
    prefix = settings.get("add_prefix_space", False)
    steps = [step for step in _steps(data.get("pre_tokenizer")) if step.get("type") == "ByteLevel"]
    wrong = [step for step in steps if step.get("add_prefix_space", True) is not prefix]
    for step in wrong:
        step["add_prefix_space"] = bool(prefix)
        notes.add(f"spaces: add_prefix_space is {prefix} in tokenizer_config.json, and otherwise in tokenizer.json")
    return bool(wrong)


def add_named_tokens(
    data: dict[str, Any], settings: Mapping[str, Any], special: Mapping[str, str], notes: Notes
) -> bool:
    """Make the tokens that tokenizer_config.json names added tokens, where the vocabulary has them as ordinary ones."""
    model, added = data.get("model"), data.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list):  # of pieces with their scores
        vocabulary = {piece: index for index, (piece, _) in enumerate(vocabulary)}
    if not isinstance(vocabulary, dict) or not isinstance(added, list):
        return False
    known = {entry.get("content") for entry in added if isinstance(entry, dict)}
    new = [entry for entry in _named(settings, special) if entry["content"] not in known]
    fresh = {
        entry["content"]: {**entry, "id": vocabulary[entry["content"]]}
        for entry in new
        if entry["content"] in vocabulary
    }
    if not fresh:
        return False
    data["added_tokens"] = sorted([*added, *fresh.values()], key=lambda entry: int(entry["id"]))
    names = ", ".join(fresh)
    notes.add(f"tokens that tokenizer_config.json names and tokenizer.json has as ordinary text: {names}")
    return True


def _named(settings: Mapping[str, Any], special: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Entries of added tokens, those with flags of their own first."""
    table = settings.get("added_tokens_decoder")
    for entry in table.values() if isinstance(table, dict) else ():
        if isinstance(entry, dict) and isinstance(entry.get("content"), str):
            flags = {name: bool(entry.get(name, False)) for name in _FLAGS}
            yield {"content": entry["content"], **flags, "special": bool(entry.get("special", False))}
    texts: list[Any] = []
    for name in ("additional_special_tokens", "extra_special_tokens"):
        value = settings.get(name)
        texts += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for text in [*special.values(), *texts]:
        content = text.get("content") if isinstance(text, dict) else text
        if isinstance(content, str):
            yield {"content": content, **dict.fromkeys(_FLAGS, False), "special": True}
