"""A sequence on a runtime: the tokens it has seen, the cache that keeps them, and the one way to feed it more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from edge.errors import InternalError, OptionError
from edge.kv import Cache, Policy
from edge.runtime import Runtime, Segment, Want


class Session:
    """One sequence. `tokens` are those committed, in order, dropped ones included; `dropped` counts the latter.

    `newly_dropped` counts those that the latest `feed`, or the steps since it, let go.
    An interrupt may come anywhere. One that comes while tokens, cache and slots change leaves the session marked as
    unknown: `align` and `reset` then begin anew, and everything else raises InternalError.
    """

    def __init__(self, runtime: Runtime, policy: Policy, sequence: int = 0) -> None:
        self.runtime = runtime
        self.sequence = sequence
        self.cache = Cache(runtime.layout, policy)
        self.tokens: list[int] = []
        self.newly_dropped = 0
        self._known = True
        self._shifts: list[int | None] = [0] * len(self.cache.rings)  # None: not known

    @property
    def dropped(self) -> int:
        return self.cache.dropped

    def align(self, prompt: Sequence[int]) -> int:
        """Keep what the sequence shares with a prompt and forget the rest; returns how many tokens need no prefill.

        At least the prompt's last token is left to run, for its logits. Where the history that a query would need was
        overwritten, everything is forgotten: the answer is that of a cold run always.
        """
        if not self._known:
            self.reset()
        shared = 0
        for ours, theirs in zip(self.tokens, prompt[:-1], strict=False):
            if ours != theirs:
                break
            shared += 1
        self._known = False
        if not self.cache.rollback(shared):
            self.reset()
            return 0
        del self.tokens[shared:]
        self._known = True
        return shared

    def reset(self) -> None:
        self._known = False
        self.cache.reset()
        self.tokens.clear()
        self._shifts = [0] * len(self.cache.rings)
        self._known = True

    def _check_known(self) -> None:
        if not self._known:
            raise InternalError("an interrupt came while this sequence changed; align it with a prompt, or reset it")

    def fork(self, sequence: int) -> Session:
        """A copy of this sequence as another one of the runtime, whatever was there; the two then go their own ways.

        Raises OptionError for a sequence that the runtime does not hold, or this one itself.
        """
        if not 0 <= sequence < self.cache.layout.sequences or sequence == self.sequence:
            raise OptionError(
                f"cannot fork sequence {self.sequence} to {sequence}; the runtime holds {self.cache.layout.sequences}"
            )
        self._check_known()
        self.runtime.copy_slots(self.sequence, sequence, [ring.filled for ring in self.cache.rings])
        copy = Session(self.runtime, self.cache.policy, sequence)
        copy.cache, copy.tokens, copy._shifts = self.cache.fork(), list(self.tokens), list(self._shifts)
        return copy

    def feed(
        self, tokens: Sequence[int], *, cancelled: Callable[[], bool] = lambda: False
    ) -> npt.NDArray[np.float32] | None:
        """Run tokens through the model in chunks; the last one's logits, [vocab], or None if cancelled in between.

        Raises PromptTooLongError before any work when the `error` policy cannot take them all.
        """
        self._check_known()
        self.newly_dropped = 0
        if self.cache.policy == "error":
            self.cache.check(len(tokens))
        logits = None
        done = 0
        while done < len(tokens):
            if cancelled():
                return None
            left = len(tokens) - done
            count = self.cache.portion(left)
            logits = self.step(tokens[done : done + count], "last" if count == left else "none")
            done += count
        return logits

    def step(self, chunk: Sequence[int], want: Want = "last") -> npt.NDArray[np.float32]:
        """Run and keep tokens that fit one forward (see `Cache.room`); what `Runtime.forward` returns for `want`."""
        self._check_known()
        plans = self.cache.plan(len(chunk))
        for ring, plan in enumerate(plans):
            if plan.shift != self._shifts[ring]:
                self._shifts[ring] = None  # an interrupt may come between the rotation and its record
                self.runtime.rotate_sinks(self.sequence, ring, plan.shift)
                self._shifts[ring] = plan.shift
        segment = Segment(self.sequence, np.asarray(chunk, np.int32), plans)
        result = self.runtime.forward([segment], want)[0]
        # Up to here only rows that nobody sees were written.
        self._known = False
        self.runtime.store(segment, len(chunk))
        self.newly_dropped += self.cache.commit(plans)
        self.tokens.extend(chunk)
        self._known = True
        return result
