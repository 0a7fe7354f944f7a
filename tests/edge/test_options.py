"""Options of the wrong type or out of range are refused by name, before a model is touched."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import pytest

from edge.errors import OptionError
from edge.options import GenerateOptions, RuntimeOptions, Sampling
from tests.edge.scripted import OpenScripted

CPUS = os.cpu_count() or 1


def test_a_single_text_is_one_stop_string_and_not_five() -> None:
    alone: dict[str, Any] = {"stop": "world"}
    assert GenerateOptions(**alone).stop == ("world",)
    several: dict[str, Any] = {"stop": ["a", "b"]}
    assert GenerateOptions(**several).stop == ("a", "b")


def test_numbers_of_numpy_are_numbers() -> None:
    options: dict[str, Any] = {"seed": np.int64(4), "temperature": np.float32(0.5), "top_p": 1, "max_tokens": None}
    assert GenerateOptions(**options).seed == 4


GENERATE: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 1.5}, "max_tokens is 1.5; it must be a whole number"),
    ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
    ({"max_tokens": True}, "max_tokens is True; it must be a whole number"),
    ({"top_k": 1.5}, "top_k is 1.5; it must be a whole number"),
    ({"seed": 1.5}, "seed is 1.5; it must be a whole number"),
    ({"temperature": "1"}, "temperature is '1'; it must be a number"),
    ({"temperature": False}, "temperature is False; it must be a number"),
    ({"temperature": math.nan}, "temperature is nan; it must be between 0 and 100"),
    ({"logit_bias": {"5": 1.0}}, "a token id of logit_bias is '5'; it must be a whole number"),
    ({"logit_bias": {5: "1"}}, "logit_bias of token 5 is '1'; it must be a number"),
    ({"logit_bias": {5: math.inf}}, "logit_bias of token 5 is inf; it must be between -100 and 100"),
    ({"logit_bias": {5: math.nan}}, "logit_bias of token 5 is nan; it must be between -100 and 100"),
    ({"logit_bias": {5: -100.5}}, "logit_bias of token 5 is -100.5; it must be between -100 and 100"),
    ({"logit_bias": [5]}, "logit_bias is [5]; it must map token ids to numbers"),
    ({"stop": 5}, "stop is 5; it must be a text or several"),
    ({"stop": (5,)}, "a stop string is 5; it must be a text"),
    ({"stop": ""}, "an empty stop string would end every answer at once"),
    ({"ignore_eos": 1}, "ignore_eos is 1; it must be True or False"),
]
SAMPLING: list[tuple[dict[str, Any], dict[str, Any], Sampling]] = [
    ({}, {}, Sampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0)),
    ({}, {"temperature": 0.7, "top_p": 0.8}, Sampling(temperature=0.7, top_p=0.8)),
    ({"temperature": 0}, {"temperature": 0.7, "top_p": 0.8}, Sampling(temperature=0, top_p=0.8)),
    ({"top_p": 1.0, "top_k": 5}, {"temperature": 0.7, "top_p": 0.8}, Sampling(temperature=0.7, top_k=5)),
]


@pytest.mark.parametrize(("given", "model", "applied"), SAMPLING)
def test_n13_what_the_caller_leaves_open_is_the_models_own(
    given: dict[str, Any], model: dict[str, Any], applied: Sampling
) -> None:
    assert GenerateOptions(**given).sampling(model) == applied


RUNTIME: list[tuple[dict[str, Any], str]] = [
    ({"context": 1.5}, "context is 1.5; it must be a whole number"),
    ({"context": 0}, "context is 0; it must be between 1 and 2147483648"),
    ({"context": 2**31 + 1}, "context is 2147483649; it must be between 1 and 2147483648"),
    ({"threads": True}, "threads is True; it must be a whole number"),
    ({"threads": 100_000}, f"threads is 100000; it must be between 1 and {max(64, 4 * CPUS)}"),
    ({"sequences": 10**7}, "sequences is 10000000; it must be between 1 and 65536"),
    ({"sinks": -1}, "sinks is -1; it must be between 0 and 2147483648"),
    ({"policy": "wrap"}, "policy is 'wrap'; it must be one of error, sliding, evict, spill"),
    ({"runtime": None}, "runtime is None; it must be a text"),
    ({"exact": "no"}, "exact is 'no'; it must be True or False"),
]


@pytest.mark.parametrize(("options", "message"), GENERATE, ids=lambda item: str(item) if type(item) is dict else "")
def test_how_text_is_generated(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as raised:
        GenerateOptions(**options)
    assert str(raised.value) == message


@pytest.mark.parametrize(("options", "message"), RUNTIME, ids=lambda item: str(item) if type(item) is dict else "")
def test_how_a_model_is_opened(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as raised:
        RuntimeOptions(**options)
    assert str(raised.value) == message


def test_four_threads_a_cpu_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 96)
    assert RuntimeOptions(threads=384).threads == 384
    with pytest.raises(OptionError, match="threads is 385; it must be between 1 and 384"):
        RuntimeOptions(threads=385)


def test_more_than_memory_holds_is_the_options_fault(opened: OpenScripted) -> None:
    with pytest.raises(OptionError, match="no memory for the model with a context of 1073741824, 65536 sequences"):
        opened(bundle_context=2**30, context=2**30, sequences=2**16)
