"""The rule of edge/sampling.py on the device: logits stay where they are, and the token alone is read back.

Draws are the oracle's: the same random numbers, and float64 weights where the device has float64 (MPS has not). Sums
are added up in another order, which moves a draw only where u · W lies within rounding of a running sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from edge.numpy_sampling import uniforms
from edge.sampling import Logits, Mask, SamplingRule


def usable() -> bool:
    """Only where a runtime asks for it: on the CPU others are faster."""
    return False


def make_core(rule: SamplingRule) -> TorchCore:
    return TorchCore(rule)


class TorchCore:
    """One answer; see `edge.sampling.Core`. Its tables are on the device of the first logits."""

    def __init__(self, rule: SamplingRule) -> None:
        self.draws = 0
        self._rule = rule
        self._prompt: list[int] = []
        self._accepted: list[int] = []
        self._uniforms = uniforms(rule.seed)
        self._tables: _Tables | None = None

    def prompt(self, tokens: Sequence[int]) -> None:
        self._prompt.extend(tokens)
        self._tables = None

    def accept(self, token: int) -> None:
        self._accepted.append(token)
        if self._tables is not None:
            self._tables.add(token)

    def truncate(self, count: int) -> None:
        assert 0 <= count <= len(self._accepted), (count, len(self._accepted))
        if count < len(self._accepted):
            del self._accepted[count:]
            self._tables = None
        if self.draws > count:
            self.draws = count
            self._uniforms = uniforms(self._rule.seed, count)

    @torch.no_grad()
    def sample(self, logits: Logits | Tensor, allowed: Mask | None) -> Tensor:
        """The token as int64 [], which is there once the device has come so far."""
        rule = self._rule
        given = torch.tensor(logits) if isinstance(logits, np.ndarray) else logits
        made = self._adjusted(given[: rule.end].float(), allowed)
        top, best = made.max(dim=0)  # of equal ones the first
        token = best
        if rule.sampling.temperature > 0:
            u = next(self._uniforms)
            self.draws += 1
            token = _draw(made, top, u, rule)
        return torch.where(top.isfinite(), token, -1 - best)

    def _adjusted(self, logits: Tensor, allowed: Mask | None) -> Tensor:
        """Steps 1 to 3."""
        rule, wide = self._rule, _wide(logits.device)
        if self._tables is None or self._tables.device != logits.device:
            self._tables = _Tables(rule, self._prompt, self._accepted, logits.device)
        tables, sampling = self._tables, rule.sampling
        if tables.seen is not None:
            held, penalty = logits.to(wide), sampling.repetition_penalty
            logits = torch.where(tables.seen, torch.where(held > 0, held / penalty, held * penalty).float(), logits)
        if tables.counts is not None:
            lowered = logits.to(wide) - rule.presence_penalty - rule.frequency_penalty * tables.counts
            logits = torch.where(tables.counts > 0, lowered.float(), logits)
        if tables.bias is not None:
            logits = (logits.to(wide) + tables.bias).float()
        if tables.known is not None:
            logits = logits.masked_fill(~tables.known, -torch.inf)
        if allowed is not None:
            logits = logits.masked_fill(~torch.tensor(allowed[: rule.end]).to(logits.device), -torch.inf)
        return logits


class _Tables:
    """What is known of each id; None where the rule does not ask."""

    def __init__(
        self, rule: SamplingRule, prompt: Sequence[int], accepted: Sequence[int], device: torch.device
    ) -> None:
        self.device = device
        self.seen: Tensor | None = None
        self.counts: Tensor | None = None
        self.bias: Tensor | None = None
        self.known: Tensor | None = None
        if rule.sampling.repetition_penalty != 1.0:
            self.seen = torch.zeros(rule.end, dtype=torch.bool)
            self.seen[[*prompt, *accepted]] = True
        if rule.presence_penalty != 0.0 or rule.frequency_penalty != 0.0:
            self.counts = torch.bincount(torch.tensor(accepted, dtype=torch.int64), minlength=rule.end).to(
                _wide(device)
            )
        if rule.bias:
            self.bias = torch.zeros(rule.end, dtype=_wide(device))
            for token, bias in rule.bias:
                self.bias[token] = bias
        if len(rule.holes):
            self.known = torch.ones(rule.end, dtype=torch.bool)
            self.known[rule.holes.tolist()] = False
        for name in ("seen", "counts", "bias", "known"):
            table = getattr(self, name)
            setattr(self, name, None if table is None else table.to(device))

    def add(self, token: int) -> None:
        if self.seen is not None:
            self.seen[token] = True
        if self.counts is not None:
            self.counts[token] += 1


def _draw(logits: Tensor, top: Tensor, u: float, rule: SamplingRule) -> Tensor:
    """Steps 5 to 9 for float32 logits [ids]."""
    sampling = rule.sampling
    if sampling.top_k and sampling.top_k < len(logits):
        # All that tie with the last one: the sort below puts those with lower ids first.
        least = logits.topk(sampling.top_k).values[-1]
        logits = logits.masked_fill(logits < least, -torch.inf)
    values, ids = logits.sort(descending=True, stable=True)
    if sampling.top_k:
        values, ids = values[: sampling.top_k], ids[: sampling.top_k]
    weights = ((values.to(_wide(logits.device)) - top) / sampling.temperature).exp()
    sums = weights.cumsum(0)
    # Places are tensors of one number that are gathered by: an index that is read would wait for the device.
    last = torch.full((1,), len(sums) - 1, dtype=torch.int64, device=sums.device)
    if sampling.top_p < 1:
        last = torch.minimum(last, torch.searchsorted(sums, sampling.top_p * sums[-1:]))
    if sampling.min_p > 0:
        last = torch.minimum(last, (weights >= sampling.min_p).sum() - 1)
    place = torch.searchsorted(sums, u * sums.gather(0, last), right=True)
    return ids.gather(0, torch.minimum(place, last))[0]


def _wide(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64
