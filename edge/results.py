"""What an answer is made from, what is known of it while it grows, and what is left of it in the end."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from edge.calls import ToolCall
from edge.options import GenerateOptions, Sampling
from edge.sampling import Logprob

FinishReason = Literal["stop", "length", "loop", "cancel", "tool_calls"]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A generated token.

    at        the seconds since the call at which it was there
    dropped   tokens that the context policy has let go since the event before; on the first, for the prompt
    logprob   only where `GenerateOptions.top_logprobs` asks
    """

    id: int
    at: float
    dropped: int
    logprob: Logprob | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    """Timing of one answer, in seconds and tokens a second. TTFT: call to first token. Rates are 0 where unmeasured."""

    ttft_s: float
    prefill_s: float
    decode_s: float
    prefill_tok_s: float
    decode_tok_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """A finished answer.

    text            the answer; `reasoning` is what a reasoning model wrote between its think tags before it
    tool_calls      the calls of offered tools, which are no part of the text
    finish_reason   "stop": an end token or stop string; "tool_calls": an end token after calls; "length": max_tokens or
                    a full context; "loop": the same tokens for 256 tokens (see edge.loops); "cancel"
    cached_tokens   prompt tokens that an earlier call had left in the cache
    dropped_tokens  tokens of the conversation that the context policy has let go, up to the end of this answer
    dropped_turns   of the messages, whole turns that the policy has not sent to the model: the oldest
    sampling        how tokens were drawn: the options, and the model's own values for what they left open
    policy          what happens when the context is full, a name of `edge.kv.policies.POLICIES`
    logprobs        of each of `tokens`; None unless `GenerateOptions.top_logprobs` asks
    """

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    stop: str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    dropped_tokens: int
    dropped_turns: int
    seed: int
    sampling: Sampling
    kv_used: int
    kv_slots: int
    policy: str
    stats: Stats
    logprobs: tuple[Logprob, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """All of it in types of JSON, by the names of the fields."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found

    def to_message(self) -> dict[str, Any]:
        """The answer as a message, to go on with the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:  # the template decides whether older reasoning stays in the prompt
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.to_message() for call in self.tool_calls]
        return message


@dataclass(frozen=True, slots=True)
class Request:
    """What an answer is made from: the prompt's ids, the end tokens, and how to sample and stop.

    `sampling` are the model's own values, `padded` the ids below `vocab_size` that have no token, `pinned` how many
    first tokens of the prompt a policy that drops some is to keep longest.
    """

    prompt: tuple[int, ...]
    eos: tuple[int, ...]
    vocab_size: int
    options: GenerateOptions
    cancel: threading.Event
    sampling: Mapping[str, Any]
    padded: tuple[int, ...] = ()
    pinned: int = 0


@dataclass(slots=True)
class Progress:
    """What is known of an answer so far (see `Result`); whole when its tokens have ended."""

    prompt_tokens: int
    seed: int
    sampling: Sampling
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprob] | None = None
    given_up: bool = False  # the task that awaited the answer was cancelled
    finish_reason: FinishReason = "cancel"
    cached_tokens: int = 0
    dropped_tokens: int = 0
    dropped_turns: int = 0
    kv_used: int = 0
    ttft_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    decode_steps: int = 0
    began: float = 0.0  # by time.perf_counter

    def stats(self) -> Stats:
        fresh = self.prompt_tokens - self.cached_tokens
        return Stats(
            ttft_s=self.ttft_s,
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
            prefill_tok_s=fresh / self.prefill_s if self.prefill_s else 0.0,
            decode_tok_s=self.decode_steps / self.decode_s if self.decode_s else 0.0,
        )
