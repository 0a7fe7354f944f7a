"""Options that callers set: how a model is opened, and how text is generated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edge.errors import OptionError
from edge.kv import Policy


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """How a model is opened.

    runtime   a name from `edge.runtime.RUNTIMES`, or "auto": the fastest that works here
    device    "auto", or one that the backend knows ("cpu", "cuda"); a missing one is an error, never a fallback
    context   tokens that the KV ring holds; None: what the model was trained for, at most 4096
    policy    "error" refuses what does not fit; "sliding" lets the oldest tokens go, and reports it
    sinks     first tokens that `sliding` never lets go
    threads   None: the physical cores
    chunk     most prompt tokens in one forward
    exact     the verification graph where the backend has one: slow, float activations
    """

    runtime: str = "auto"
    device: str = "auto"
    context: int | None = None
    policy: Policy = "error"
    sinks: int = 0
    threads: int | None = None
    chunk: int = 256
    sequences: int = 1
    exact: bool = False

    def __post_init__(self) -> None:
        for name, low in (("context", 1), ("threads", 1), ("chunk", 1), ("sequences", 1), ("sinks", 0)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise OptionError(f"{name} is {value}; it must be at least {low}")


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """How text is generated. `temperature` 0 is greedy; the defaults follow the model's own distribution.

    max_tokens          None: until the model stops or the context is full
    top_k               0: off
    repetition_penalty  divides positive logits of seen tokens and multiplies negative ones (CTRL, arXiv:1909.05858)
    presence_penalty, frequency_penalty  subtracted once, and once per occurrence, over generated tokens (OpenAI's rule)
    logit_bias          token id → added to its logit
    seed                None: a fresh one, reported in the result
    stop                strings that end the answer; they are not part of it
    """

    max_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        ranges = (
            ("max_tokens", 1, float("inf")),
            ("temperature", 0, 100),
            ("top_k", 0, float("inf")),
            ("top_p", 0, 1),
            ("min_p", 0, 1),
            ("repetition_penalty", 0.01, 100),
            ("presence_penalty", -100, 100),
            ("frequency_penalty", -100, 100),
            ("seed", 0, 2**64 - 1),
        )
        for name, low, high in ranges:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise OptionError(f"{name} is {value}; it must be between {low} and {high}")
        if any(not stop for stop in self.stop):
            raise OptionError("an empty stop string would end every answer at once")
