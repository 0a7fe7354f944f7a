"""Answers to prompts, always the most likely token, of a bundle and of another model side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge import texts
from edge.bundle import Bundle
from edge.chat import ChatTemplates, read_templates
from edge.errors import NotFoundError, OptionError
from edge.progress import Progress
from edge.tokenizer import Tokenizer, open_tokenizer
from exporters.report import greedy
from exporters.report.models import FromBundle, Model, Opener

_FORMS = (
    'a line is {"prompt": TEXT}, {"messages": [...]}, both through the chat template, or {"text": TEXT} to go on with'
)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and the other model's, None where there is none.

    tokens   of the answer, its end token included
    agreed   tokens before the first one that differs
    common   the text of these
    """

    prompt: str
    answer: str
    tokens: int
    other: str | None = None
    agreed: int | None = None
    common: str = ""

    @property
    def same(self) -> bool:
        return self.other is not None and self.agreed == self.tokens


@dataclass(frozen=True, slots=True)
class Answers:
    """`other` says what the bundle was set against, as in `edge.measured`; answers are cut at `limit` tokens."""

    other: str
    limit: int
    answers: tuple[Answer, ...]

    @property
    def agreed(self) -> float | None:
        """Tokens before the first different one, the mean over prompts."""
        counts = [item.agreed for item in self.answers if item.agreed is not None]
        return sum(counts) / len(counts) if counts else None

    @property
    def same(self) -> int:
        return sum(item.same for item in self.answers)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "agreed": self.agreed, "same": self.same}


@dataclass(frozen=True, slots=True)
class _Prompt:
    shown: str
    ids: list[int]


def compare(
    own: FromBundle, other: Opener | None, name: str, file: Path, limit: int, progress: Progress
) -> Answers:  # fmt: skip
    """Answer each prompt of a JSONL file with at most `limit` tokens; `name` is what `other` is called.

    Raises NotFoundError, OptionError for a file that holds no prompts or one that is too long, and what opening raises.
    """
    bundle, tokenizer = own.bundle, open_tokenizer(own.bundle)
    prompts = list(_read(file, bundle, tokenizer))
    length = max(len(prompt.ids) for prompt in prompts) + limit
    if length > bundle.spec.context:
        raise OptionError(
            f"{file}: its longest prompt and {limit} tokens are {length}; the model takes {bundle.spec.context}"
        )
    found = []
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(own(length))
        second = None if other is None else stack.enter_context(other(length))
        for number, prompt in enumerate(prompts):
            progress("answer", number / len(prompts))
            found.append(_answer(prompt, model, second, bundle.manifest.tokenizer.eos, limit, tokenizer))
    progress("answer", 1.0)
    return Answers(name, limit, tuple(found))


def _answer(
    prompt: _Prompt, model: Model, other: Model | None, ends: Sequence[int], limit: int, tokenizer: Tokenizer
) -> Answer:
    own = greedy.answer(model, prompt.ids, limit, ends)
    found = Answer(prompt.shown, tokenizer.decode(own), len(own))
    if other is None:
        return found
    its = greedy.answer(other, prompt.ids, limit, ends)
    agreed = next((i for i, (a, b) in enumerate(zip(own, its, strict=False)) if a != b), min(len(own), len(its)))
    return Answer(
        found.prompt, found.answer, found.tokens, tokenizer.decode(its), agreed, tokenizer.decode(own[:agreed])
    )


def _read(file: Path, bundle: Bundle, tokenizer: Tokenizer) -> Iterator[_Prompt]:
    try:
        lines = texts.read(file).split("\n")
    except FileNotFoundError as error:
        raise NotFoundError(f"no prompts {str(file)!r}: there is no such file") from error
    except (OSError, ValueError) as error:
        raise OptionError(f"prompts {file}: {error}") from error
    templates, count = read_templates(bundle), 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _prompt(texts.parse_json(line), templates, tokenizer)
        except (OptionError, ValueError) as error:
            raise OptionError(f"prompts {file}, line {number}: {error}") from error
        count += 1
    if not count:
        raise OptionError(f"prompts {file}: no line holds one; {_FORMS}")


def _prompt(item: Any, templates: ChatTemplates | None, tokenizer: Tokenizer) -> _Prompt:
    """Raises OptionError for what is no prompt, and what rendering raises."""
    keys = [key for key in ("prompt", "messages", "text") if isinstance(item, dict) and key in item]
    if len(keys) != 1 or not isinstance(item[keys[0]], list if keys == ["messages"] else str):
        raise OptionError(_FORMS)
    if keys == ["text"]:
        return _Prompt(item["text"], tokenizer.encode_prompt(item["text"]))
    if templates is None:
        raise OptionError('this model has no chat template; give it {"text": ...}')
    messages = item["messages"] if keys == ["messages"] else [{"role": "user", "content": item["prompt"]}]
    last = messages[-1] if messages else None
    shown = last.get("content") if isinstance(last, dict) else None
    return _Prompt(str(shown), templates.encode(messages, tokenizer))
