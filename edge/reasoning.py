"""The tags around what a model thinks before it answers; edge/sections.py cuts the text at them.

Whether a model reasons is read off its template and its vocabulary, never guessed from its text: the first pair of
`TAGS` of which the template mentions a tag, or the vocabulary has one as an added token, counts. The opening tag may be
the model's own first word, or the template may have written it already, as the end of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge.tokenizer import Tokenizer

_TAIL = 16  # ids at the end of a prompt among which an opening tag, whole or in pieces, and white space have room


@dataclass(frozen=True, slots=True)
class Tags:
    """A pair of tags, the ids of those that are control tokens (id → spelling), which text would not show, and the tags
    that such a model puts around the answer after its reasoning."""

    opening: str
    closing: str
    spelled: dict[int, str]
    around: tuple[str, ...] = ()


TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
_AROUND = ("<response>", "</response>")  # Granite 3


def find_tags(template: str, tokenizer: Tokenizer) -> Tags | None:
    """The tags of a model that reasons, None for one that does not."""
    control = tokenizer.control.ids
    for opening, closing in TAGS:
        if any(tag in template or tag in tokenizer.ordinary_added or tag in control for tag in (opening, closing)):
            spelled = {control[tag]: tag for tag in (opening, closing) if tag in control}
            return Tags(opening, closing, spelled, tuple(tag for tag in _AROUND if tag in template))
    return None


def is_opened(prompt: Sequence[int], tags: Tags, tokenizer: Tokenizer) -> bool:
    """Whether a prompt ends in the opening tag, so that the answer starts inside the reasoning."""
    text = ""
    run: list[int] = []
    for token in prompt[-_TAIL:]:
        if token in tags.spelled:
            text += tokenizer.decode(run) + tags.spelled[token]
            run = []
        elif tokenizer.is_silent(token):  # a control token: the text before it belongs to an earlier message
            text, run = "", []
        else:
            run.append(token)
    return (text + tokenizer.decode(run)).rstrip().endswith(tags.opening)
