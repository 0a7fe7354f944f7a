"""What does not fit the context: by how much, and what can be done about it on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.errors import OptionError, PromptTooLongError

if TYPE_CHECKING:
    from edge.pipeline import Pipeline

_ANSWER = 512  # tokens left for an answer in a context that is suggested
_STEP = 1024


def too_long(error: PromptTooLongError, pipeline: Pipeline) -> OptionError:
    """The error for a prompt that the context cannot take."""
    most = pipeline.bundle.spec.context
    over = error.tokens - error.limit
    found = f"the prompt has {error.tokens} tokens and the context holds {error.limit}: {over} too many"
    if error.tokens > most:
        advice = f"the model takes at most {most}: shorten the text, or drop its beginning with --policy sliding"
    else:
        advice = f"--context {suggested(error.tokens, most)} holds it (the model takes at most {most})"
    return OptionError(f"{found}; {advice}")


def suggested(tokens: int, most: int) -> int:
    """A context for that many tokens and an answer, in whole steps, as far as the model goes."""
    return min(most, -(-(tokens + _ANSWER) // _STEP) * _STEP)


def larger(pipeline: Pipeline) -> str:
    """What gives more room: a larger context as far as the model goes, then the sliding policy."""
    most, context = pipeline.bundle.spec.context, pipeline.runtime.layout.context
    if context < most:
        return f"it holds {context} tokens, and --context N as many as {most}"
    return f"it holds {context} tokens, which is all that the model takes; --policy sliding drops the oldest"
