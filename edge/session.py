"""A sequence on a runtime: the tokens it has seen, the cache that keeps them, and the one way to feed it more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from edge.errors import EdgeError, InternalError, OptionError
from edge.kv import Pools
from edge.kv.cache import SavedRing
from edge.runtime import Batch, Runtime, Segment, Tap

Want = Literal["none", "last", "all"] | Tap
_ROWS = ("none", "last", "all")


_AT_ONCE = 256  # tokens that are compared


def common(ours: Sequence[int], theirs: Sequence[int], limit: int) -> int:
    """How many first tokens two sequences have in common, at most `limit`; compared in slices, which is faster."""
    limit = min(limit, len(ours), len(theirs))
    for start in range(0, limit, _AT_ONCE):
        end = min(start + _AT_ONCE, limit)
        if list(ours[start:end]) != list(theirs[start:end]):
            return next(i for i in range(start, end) if ours[i] != theirs[i])
    return limit


class Session:
    """One sequence. `tokens` are those committed, in order, dropped ones included; `dropped` counts the latter.

    An interrupt may come anywhere. One that comes while tokens, cache and slots change leaves the session marked as
    unknown: `align` and `reset` then begin anew, and everything else raises InternalError.
    """

    def __init__(self, runtime: Runtime, pools: Pools | None = None, *, pinned: int = 0) -> None:
        """`pools` are those of the runtime's other sessions; the first `pinned` tokens are those that stay longest.

        Raises PoolFullError where all extents are taken.
        """
        self.runtime = runtime
        self.pools = pools or Pools(runtime.layout, extents=runtime.capabilities.extents)
        self.cache = self.pools.open(pinned)
        self.tokens: list[int] = []
        self._known = True

    @property
    def dropped(self) -> int:
        return self.cache.dropped

    @property
    def known(self) -> bool:
        """Whether no interrupt came while the sequence changed."""
        return self._known

    def align(self, prompt: Sequence[int]) -> int:
        """Keep what the sequence shares with a prompt and forget the rest; returns how many tokens need no prefill.

        At least the prompt's last token is left to run, for its logits. Where the history that a query would need was
        overwritten, everything is forgotten: the answer is that of a cold run always.
        """
        if not self._known:
            self.reset()
        shared = common(self.tokens, prompt, len(prompt) - 1)
        self._known = False
        if not self.cache.rollback(shared):
            self.reset()
            return 0
        del self.tokens[shared:]
        self._known = True
        return shared

    def restore(self, tokens: Sequence[int], rings: Sequence[SavedRing]) -> None:
        """Take slots for a saved sequence, whose rows the caller then writes. Raises as `Cache.restore` does."""
        self._known = False
        self.cache.restore(len(tokens), rings)
        self.tokens = list(tokens)
        self._known = True

    def reset(self) -> None:
        known, self._known = self._known, False
        if known:
            self.cache.reset()
        else:
            self.cache.recover()
        self.tokens.clear()
        self._known = True

    def close(self) -> None:
        """Give back what the sequence holds. Idempotent."""
        if not self._known:
            self.reset()
        self._known = False
        self.cache.close()
        self.tokens.clear()

    def _check_known(self) -> None:
        if not self._known:
            raise InternalError("an interrupt came while this sequence changed; align it with a prompt, or reset it")

    def goes_on(self, count: int, pinned: int) -> bool:
        """Whether behind `count` of its tokens all is as it would be in a sequence with so many pinned ones."""
        return self.known and self.cache.exact_at(count) and self.cache.is_alike(count, pinned)

    def fork(self, count: int | None = None, *, pinned: int | None = None) -> Session:
        """Another sequence with the same first `count` tokens, all by default; the two then go their own ways.

        `pinned` may be other than this one's where `goes_on` says so.

        Raises as the constructor does, and OptionError where tokens that a query behind them would see are not held.
        """
        self._check_known()
        count = len(self.tokens) if count is None else count
        if not self.cache.exact_at(count):
            raise OptionError(f"the sequence no longer holds what a fork behind its first {count} tokens would see")
        copy = Session(self.runtime, self.pools, pinned=self.cache.pinned if pinned is None else pinned)
        copy._known = self._known = False
        for move in self.cache.fork(copy.cache, count):
            self.runtime.move(move)
        copy.tokens = self.tokens[:count]
        copy._known = self._known = True
        return copy

    def feed(self, tokens: Sequence[int]) -> npt.NDArray[np.float32] | None:
        """Run tokens through the model in chunks; the last one's logits, [vocab], or None if there are none.

        Raises PromptTooLongError before any work when the policy ends the sequence before them.
        """
        self._check_known()
        self.cache.check(len(tokens))
        logits = None
        done = 0
        while done < len(tokens):
            left = len(tokens) - done
            count = self.cache.portion(left)
            logits = self.step(tokens[done : done + count], "last" if count == left else "none")
            done += count
        return logits

    def step(self, chunk: Sequence[int], want: Want = "last") -> npt.NDArray[np.float32]:
        """Run and keep tokens that fit one forward (see `Cache.room`).

        Of `want` "none" are logits [0, vocab], of "last" [vocab], of "all" [n, vocab]; the others are taps.
        """
        if want not in (*_ROWS, *get_args(Tap)):
            raise OptionError(f"unknown want {want!r}; known are {', '.join((*_ROWS, *get_args(Tap)))}")
        rows = {"none": 0, "last": 1, "all": len(chunk)}.get(want, 1)
        tap: Tap | None = None if want in _ROWS else want  # type: ignore[assignment]
        segment = self.segment(chunk, rows)
        result = self.runtime.forward(Batch((segment,), tap))[0]
        self.commit(chunk)
        return result[0] if want == "last" else result

    def segment(self, chunk: Sequence[int], logit_rows: int = 1) -> Segment:
        """The next tokens as a part of a batch; after the forward, `commit` keeps them. Raises as `Cache.prepare`."""
        self._check_known()
        self._known = False
        try:
            moves = self.cache.prepare(len(chunk))
        except EdgeError:  # raised before anything changed but what nobody sees any more
            self._known = True
            raise
        for move in moves:
            self.runtime.move(move)
        self._known = True
        return Segment(self.cache.number, np.asarray(chunk, np.int32), self.cache.plan(len(chunk)), logit_rows)

    def commit(self, chunk: Sequence[int]) -> None:
        """Keep the tokens of the latest segment, which a forward has run."""
        self._known = False
        self.cache.commit(len(chunk))
        self.tokens.extend(chunk)
        self._known = True
