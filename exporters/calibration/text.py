"""The text that a model is calibrated on: read, checked, tokenized and cut into samples of equal length."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge import texts
from edge.chat import ChatTemplates
from edge.errors import NotFoundError, OptionError
from edge.tokenizer import Tokenizer

MIX = Path(__file__).parent / "mix.jsonl"  # benchmarks/calibration_mix.py wrote it
TOKENS, LENGTH = 32_768, 512
SEED = 0
_LEAST = 256  # tokens
_WINDOW = 16  # words in a row that are no coincidence


@dataclass(frozen=True, slots=True)
class Calibration:
    """Samples of ids, each a sequence by itself; where they are from; `sha256` of the file that they are from."""

    name: str
    sha256: str
    samples: tuple[tuple[int, ...], ...]

    def to_json(self) -> dict[str, Any]:
        tokens = sum(map(len, self.samples))
        return {"text": self.name, "sha256": self.sha256, "tokens": tokens, "samples": len(self.samples), "seed": SEED}


def read(
    path: Path | None, tokenizer: Tokenizer, templates: ChatTemplates | None, *, context: int, measured: Sequence[str],
    tokens: int = TOKENS,
) -> Calibration:  # fmt: skip
    """Samples of a text or JSONL file, of the built-in mix for None.

    A line of JSONL is {"text": …}, or {"messages": […]} that go through the model's chat template. At most
    `tokens` tokens are taken, spread over the file. Raises NotFoundError, and OptionError for a file that is no such
    text, is too short, or shares a run of words with one of the texts in `measured`, on which the result is judged.
    """
    file = MIX if path is None else path
    if not file.is_file():
        raise NotFoundError(f"no calibration text {str(file)!r}: there is no such file")
    try:
        documents = list(_documents(file))
    except (OSError, ValueError) as error:
        raise OptionError(f"calibration text {file}: {error}") from error
    check_apart(str(file), (_plain(item) for item in documents), measured)
    ids = [token for item in documents for token in _encode(file, item, tokenizer, templates)]
    if len(ids) < _LEAST:
        raise OptionError(f"calibration text {file} is {len(ids)} tokens; at least {_LEAST} are needed")
    name = "mix" if path is None else file.name
    return Calibration(
        name, hashlib.sha256(file.read_bytes()).hexdigest(), _cut(ids, tokenizer, min(LENGTH, context), tokens)
    )


def check_apart(name: str, documents: Iterable[str], measured: Sequence[str]) -> None:
    """Raise OptionError where a document has sixteen words in a row that a measured text has too."""
    known = {window for text in measured for window in _windows(text)}
    for text in documents:
        for window in _windows(text):
            if window in known:
                raise OptionError(
                    f"calibration text {name} holds a part of the text that the result is measured on "
                    f"({' '.join(window[:6])} …); the figures would flatter: use another text"
                )


def _windows(text: str) -> Iterator[tuple[str, ...]]:
    words = text.lower().split()
    return (tuple(words[i : i + _WINDOW]) for i in range(len(words) - _WINDOW + 1))


def _documents(file: Path) -> Iterator[Mapping[str, Any]]:
    text = texts.read(file)
    if file.suffix != ".jsonl":
        yield {"text": text}
        return
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        item = texts.parse_json(line)
        if not isinstance(item, dict) or isinstance(item.get("text"), str) == isinstance(item.get("messages"), list):
            raise ValueError(f'line {number} has neither a "text" nor a list of "messages" alone')
        yield item


def _plain(item: Mapping[str, Any]) -> str:
    """What of a document may be found again in another text."""
    if "text" in item:
        return str(item["text"])
    return "\n".join(str(message.get("content")) for message in item["messages"] if isinstance(message, dict))


def _encode(
    file: Path, item: Mapping[str, Any], tokenizer: Tokenizer, templates: ChatTemplates | None
) -> Iterable[int]:
    if "text" in item:
        return tokenizer.encode(item["text"] + "\n\n")
    if templates is None:
        raise OptionError(f"calibration text {file} has messages, and this model has no chat template; give it texts")
    return templates.encode(item["messages"], tokenizer)


def _cut(ids: Sequence[int], tokenizer: Tokenizer, length: int, most: int) -> tuple[tuple[int, ...], ...]:
    """Samples of equal length, each with a bos if the tokenizer adds one; drawn where there are too many."""
    prefix = tokenizer.with_bos([])
    length = min(length, len(ids) + len(prefix))
    own = length - len(prefix)
    starts = np.arange(len(ids) // own) * own
    count = max(1, most // length)
    if len(starts) > count:
        starts = np.sort(np.random.default_rng(SEED).permutation(starts)[:count])
    return tuple((*prefix, *ids[start : start + own]) for start in starts.tolist())
