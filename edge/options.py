"""Options that callers set: how a model is opened, and how text is generated."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, get_args

from edge.errors import OptionError
from edge.kv import KvDtype, policies

Compute = Literal["auto", "float32", "bfloat16", "float16"]
WeightForm = Literal["auto", "float16"]
KvPlace = Literal["auto", "device", "host"]
_CHOICES: Mapping[str, Any] = {"kv_dtype": KvDtype, "compute": Compute, "weights": WeightForm, "kv": KvPlace}

_AUTO = ("context", "auto")
_OPEN = ("context", "sinks", "threads", "chunk", "sequences")  # they may be None
_LARGEST_BIAS = 100.0  # OpenAI's range: enough to force a token or to ban it
_INFINITY = float("inf")


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """How a model is opened. Raises OptionError for a value of the wrong type or out of range.

    runtime   a name from `edge.runtime.RUNTIMES`, or "auto": the fastest that works here
    device    "auto", or one that the backend offers here, such as "cpu"; a missing one is an error, never a fallback
    context   tokens that keys and values have room for; None: what the model was trained for, at most 4096; "auto": as
              many of those as free memory holds
    policy    what happens when the context is full, a name of `edge.kv.policies.POLICIES`: "error" refuses what does
              not fit; "sliding" lets the oldest tokens go, "evict" older ones that got little attention, and both
              report it; "spill" keeps all in a file, and its default context is what the model was trained for
    sinks     first tokens that `sliding` and `evict` never let go; None: four. Models lean on them: with 0 they fail
    threads   None: the physical cores; at most 64, or four for every CPU where that is more
    chunk     most prompt tokens in one forward; None: what suits the backend, which torch measures at first use
    sequences for how many whole contexts keys and values have room; shorter ones share it. None: four, or as many as
              half of a container's memory holds; on Windows one
    exact     the verification graph where the backend has one: slow, float activations
    kv_dtype  how keys and values are kept; "auto": as the backend does by itself. int8 has a scale for each kept row
    compute   what the products of the torch backend are computed in; "auto": bfloat16, float16 where a GPU lacks that
    weights   "float16": the torch backend keeps all weights dequantized, in four times the memory of int4
    kv        "host": the torch backend keeps keys and values in the host's memory; a layer's visit the device
    """

    runtime: str = "auto"
    device: str = "auto"
    context: int | Literal["auto"] | None = None
    policy: str = "error"
    sinks: int | None = None
    threads: int | None = None
    chunk: int | None = None
    sequences: int | None = None
    exact: bool = False
    kv_dtype: KvDtype = "auto"
    compute: Compute = "auto"
    weights: WeightForm = "auto"
    kv: KvPlace = "auto"

    def __post_init__(self) -> None:
        for name in ("runtime", "device"):
            _check_text(name, getattr(self, name))
        policies.find(self.policy)
        _check_flag("exact", self.exact)
        for name, kind in _CHOICES.items():
            if getattr(self, name) not in get_args(kind):
                raise OptionError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(get_args(kind))}")
        ranges = (
            ("context", 1, 2**31),
            ("sinks", 0, 2**31),
            ("threads", 1, max(64, 4 * (os.cpu_count() or 1))),
            ("chunk", 1, 2**31),
            ("sequences", 1, 2**16),
        )
        for name, low, high in ranges:
            value = getattr(self, name)
            if (value is None and name in _OPEN) or (name, value) == _AUTO:
                continue
            _check_whole(name, value)
            if not low <= value <= high:
                raise OptionError(f"{name} is {value}; it must be between {low} and {high}")


_SAMPLING = (
    ("temperature", 0, 100),
    ("top_k", 0, _INFINITY),
    ("top_p", 0, 1),
    ("min_p", 0, 1),
    ("repetition_penalty", 0.01, 100),
)


_GENERATING = (
    ("max_tokens", 1, _INFINITY),
    ("presence_penalty", -100, 100),
    ("frequency_penalty", -100, 100),
    ("seed", 0, 2**64 - 1),
    ("top_logprobs", 0, 20),
)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn; the defaults are greedy. `edge.sampling` has the rule. OptionError as GenerateOptions."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name, low, high in _SAMPLING:
            _check_range(name, getattr(self, name), low, high)


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """How text is generated.

    max_tokens          None: until the model stops or the context is full
    temperature         0: greedy, always the likeliest token (of what a repetition penalty leaves)
    temperature, top_k, top_p, min_p, repetition_penalty  None: as the model's authors recommend, else as in `Sampling`
    top_k               0: off
    repetition_penalty  divides positive logits of seen tokens and multiplies negative ones (CTRL, arXiv:1909.05858)
    presence_penalty, frequency_penalty  subtracted once, and once per occurrence, over generated tokens (OpenAI's rule)
    logit_bias          token id → added to its logit, from -100 to 100
    seed                None: a fresh one, reported in the result
    stop                strings that end the answer; they are not part of it. A text alone counts as one of them
    top_logprobs        how many of the likeliest tokens to tell beside each token; 0: its own logprob; None: nothing
    thinking            whether a model that can reason does; None: as its template has it
    chat_template_kwargs  variables for the chat template, whatever JSON can hold; it must look at each of them

    Raises OptionError for a value of the wrong type or out of range.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int | None = None
    thinking: bool | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, low, high in (*_SAMPLING, *_GENERATING):
            value = getattr(self, name)
            if value is not None or name in ("presence_penalty", "frequency_penalty"):
                _check_range(name, value, low, high)
        _check_bias(self.logit_bias)
        object.__setattr__(self, "stop", _stops(self.stop))
        _check_flag("ignore_eos", self.ignore_eos)
        if self.thinking is not None:
            _check_flag("thinking", self.thinking)
        if not isinstance(self.chat_template_kwargs, Mapping):
            raise OptionError(f"chat_template_kwargs is {self.chat_template_kwargs!r}; it must map names to values")
        for name in self.chat_template_kwargs:
            _check_text("a name of chat_template_kwargs", name)

    def sampling(self, model: Mapping[str, Any]) -> Sampling:
        """What applies: these options, and what they leave open as the model has it."""
        names = [name for name, *_ in _SAMPLING]
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return Sampling(**{**model, **given})


def _check_range(name: str, value: Any, low: float, high: float) -> None:
    check = _check_whole if name in ("max_tokens", "top_k", "seed", "top_logprobs") else _check_number
    check(name, value)
    if not low <= value <= high:
        allowed = f"at least {low}" if high == _INFINITY else f"between {low} and {high}"
        raise OptionError(f"{name} is {value}; it must be {allowed}")


def _check_whole(name: str, value: object) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise OptionError(f"{name} is {value!r}; it must be a whole number")


def _check_number(name: str, value: object) -> None:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise OptionError(f"{name} is {value!r}; it must be a number")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise OptionError(f"{name} is {value!r}; it must be a text")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise OptionError(f"{name} is {value!r}; it must be True or False")


def _check_bias(bias: object) -> None:
    if not isinstance(bias, Mapping):
        raise OptionError(f"logit_bias is {bias!r}; it must map token ids to numbers")
    for token, value in bias.items():
        _check_whole("a token id of logit_bias", token)
        name = f"logit_bias of token {token}"
        _check_number(name, value)
        if not -_LARGEST_BIAS <= value <= _LARGEST_BIAS:
            raise OptionError(f"{name} is {value}; it must be between {-_LARGEST_BIAS:g} and {_LARGEST_BIAS:g}")


def _stops(stop: object) -> tuple[str, ...]:
    """The stop strings; a single text is one of them, not one a letter."""
    if isinstance(stop, str):
        stop = (stop,)
    if not isinstance(stop, Iterable):
        raise OptionError(f"stop is {stop!r}; it must be a text or several")
    found = tuple(stop)
    for text in found:
        _check_text("a stop string", text)
        if not text:
            raise OptionError("an empty stop string would end every answer at once")
    return found
