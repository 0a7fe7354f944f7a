"""The rule of edge/sampling.py in C++ (src/sampling.cpp)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edge.sampling import Logits, Mask, SamplingRule
from runtimes import native


def usable() -> bool:
    """Where the native engine was built."""
    return bool(native.support().devices)


def make_core(rule: SamplingRule) -> NativeCore:
    return NativeCore(rule)


class NativeCore:
    """One answer; see `edge.sampling.Core`."""

    def __init__(self, rule: SamplingRule) -> None:
        from runtimes.native import _native

        sampling = rule.sampling
        fields: dict[str, Any] = {
            "temperature": float(sampling.temperature), "top_k": min(int(sampling.top_k), rule.end),
            "top_p": float(sampling.top_p), "min_p": float(sampling.min_p),
            "repetition": float(sampling.repetition_penalty), "presence": rule.presence_penalty,
            "frequency": rule.frequency_penalty, "seed": rule.seed, "end": rule.end, "holes": rule.holes.tolist(),
            "bias_ids": [token for token, _ in rule.bias], "bias": [bias for _, bias in rule.bias],
        }  # fmt: skip
        self._core = _native.Sampler(fields, native.kernels())
        self.accept = self._core.accept
        self.truncate = self._core.truncate

    @property
    def draws(self) -> int:
        return int(self._core.draws)

    def prompt(self, tokens: Sequence[int]) -> None:
        self._core.prompt(np.asarray(tokens, np.int32))

    def sample(self, logits: Logits, allowed: Mask | None) -> int:
        return int(self._core.sample(logits, None if allowed is None else allowed.view(np.uint8)))
