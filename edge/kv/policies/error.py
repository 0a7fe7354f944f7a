"""`error`: what does not fit is refused, and an answer ends where the context is full. Nothing is ever dropped."""

from __future__ import annotations

from edge.kv.policies.policy import Policy


class Error(Policy):
    summary = "refuse"
