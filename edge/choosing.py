"""What "auto" means where there is a GPU: the backend that answered a short prompt fastest when it was first tried.

The fastest of the processor's backends and each backend with a GPU run the bundle once, one after the other: a prompt
of 128 tokens and 16 tokens after it. What that took is remembered for the bundle, the device and the options.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edge import remembered, seal
from edge.bundle import Bundle
from edge.errors import EdgeError, FormatError
from edge.kv import plan_layout
from edge.options import RuntimeOptions
from edge.records import read_record
from edge.session import Session

KIND = "runtime"
PROMPT, NEW = 128, 16
_ANSWER = 128  # tokens that an answer is reckoned to have


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of a prompt of `PROMPT` tokens and of a token after it; `refused` says why there are none."""

    prompt_s: float = 0.0
    token_s: float = 0.0
    refused: str = ""

    @property
    def answer_s(self) -> float:
        """Of a prompt and an answer."""
        return float("inf") if self.refused else self.prompt_s + _ANSWER * self.token_s

    def __str__(self) -> str:
        if self.refused:
            return self.refused
        return f"prefill {PROMPT / self.prompt_s:.0f}, decode {1 / self.token_s:.0f} tok/s"


def fastest(bundle: Bundle, options: RuntimeOptions, rivals: Mapping[str, str]) -> str:
    """Of some backends, by the device that each would take, the one that is fastest with a bundle here."""
    found = {name: _speed(bundle, options, name, device) for name, device in rivals.items()}
    return min(found, key=lambda name: found[name].answer_s)


def told() -> list[str]:
    """What is remembered, a line a bundle and backend."""
    entries = ((key, _read(value)) for key, value in remembered.entries(KIND).items())
    return [f"{key.rpartition(' ')[0]}: {speed}" for key, speed in entries if speed is not None]


def _read(value: Any) -> Speed | None:
    """What an entry says; None for one that somebody has damaged."""
    try:
        found: Speed = read_record(Speed, value)
    except (FormatError, TypeError, AttributeError):
        return None
    return found if found.refused or min(found.prompt_s, found.token_s) > 0 else None


def _speed(bundle: Bundle, options: RuntimeOptions, name: str, device: str) -> Speed:
    """As it is remembered, or measured now."""
    described = f"{seal.seal(bundle.manifest.to_json())} {options.threads} {options.exact} {options.kv_dtype}"
    key = f"{bundle.manifest.name} {name} {device} {hashlib.sha256(described.encode()).hexdigest()[:16]}"
    known = _read(remembered.recall(KIND, key))
    if known is not None:
        return known
    speed = _measured(bundle, replace(options, runtime=name, device=device))
    remembered.remember(KIND, key, {"prompt_s": speed.prompt_s, "token_s": speed.token_s, "refused": speed.refused})
    return speed


def _measured(bundle: Bundle, options: RuntimeOptions) -> Speed:
    from edge.runtime import open_runtime

    context = min(bundle.spec.context, 2 * PROMPT)
    prompt = [token % bundle.spec.vocab_size for token in range(7, 7 + min(PROMPT, context - NEW))]
    try:
        runtime = open_runtime(bundle, plan_layout(bundle.spec, context, chunk=len(prompt)), options)
    except EdgeError as error:
        return Speed(refused=str(error))
    try:
        session = Session(runtime)
        for _ in range(2):  # the first time, kernels and graphs are made
            session.reset()
            start = time.perf_counter()
            session.feed(prompt)
            middle = time.perf_counter()
            for token in prompt[:NEW]:
                session.step([token])
            end = time.perf_counter()
    except EdgeError as error:
        return Speed(refused=str(error))
    finally:
        runtime.close()
    return Speed((middle - start) * PROMPT / len(prompt), (end - middle) / NEW)
