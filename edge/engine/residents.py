"""Sequences that no answer uses at the moment, kept for the next one that begins like them."""

from __future__ import annotations

from collections.abc import Sequence

from edge.errors import PoolFullError, PromptTooLongError
from edge.kv import BLOCK, Pools, policies, row_bytes
from edge.memory import available_memory
from edge.runtime import Runtime
from edge.session import Session, common

_MOST = 256  # sequences that are kept
_SPARE = 64 << 20  # bytes that are left to the system and to activations


class Memory:
    """What blocks take, and whether the system has so much: behind its limit it would end the process."""

    def __init__(self, runtime: Runtime) -> None:
        self._block = [0] * len(runtime.layout.rings)
        for group, dtype in zip(runtime.spec.layer_groups, runtime.kv_dtypes, strict=True):
            self._block[group] += BLOCK * row_bytes(runtime.spec.kv_groups[group], dtype)

    def check(self, ring: int, blocks: int) -> None:
        """Raise PoolFullError, with both numbers, unless there is memory for so many more blocks of a ring."""
        needed, free = blocks * self._block[ring], available_memory()
        if free is not None and needed + _SPARE > free:
            raise PoolFullError(
                f"keys and values of {blocks * BLOCK} more tokens take {needed / 1e6:.1f} MB, and {free / 1e6:.0f} MB "
                "of memory are free; close other programs, or choose a smaller context, or the policy sliding or spill"
            )


class Residents:
    """The idle sequences of a runtime, least recently used first. All sequences of its engine come from here."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        here = runtime.device == "cpu" and runtime.layout.storage == "memory"
        memory = Memory(runtime).check if here else None
        self.pools = Pools(runtime.layout, extents=runtime.capabilities.extents, memory=memory)
        self._idle: list[Session] = []

    def check(self, count: int) -> None:
        """Raise PromptTooLongError for a prompt that the policy cannot take."""
        layout = self.runtime.layout
        if policies.find(layout.policy).ends and count > layout.context:
            raise PromptTooLongError(count, layout.context)

    def begin(self, prompt: Sequence[int], running: Sequence[Session], *, pinned: int = 0) -> Session:
        """A sequence that has as much of a prompt, but for its last token, as any idle or running one.

        Its first `pinned` tokens are those that stay longest.

        Blocks are shared with the other, or it goes on itself where the prompt continues it. With extents rows are
        copied; where there is no extent left, the sequence least recently used makes room.
        Raises PoolFullError where running sequences have all extents.
        """
        best, count = None, 0
        for session in [*self._idle, *running]:
            shared = common(session.tokens, prompt, len(prompt) - 1) if session.known else 0
            if shared > count and session.goes_on(shared, pinned):
                best, count = session, shared
        if best in self._idle and count == len(best.tokens) and best.cache.pinned == pinned:
            self._idle.remove(best)
            return best
        while True:
            try:
                if best is None:
                    return Session(self.runtime, self.pools, pinned=pinned)
                return best.fork(count, pinned=pinned)
            except PoolFullError:
                others = [session for session in self._idle if session is not best]
                if not others:
                    break
                self._drop(others[0])
        if best not in self._idle:
            raise PoolFullError("all sequences of the runtime are in use")
        if best.cache.pinned != pinned:
            self._drop(best)
            return Session(self.runtime, self.pools, pinned=pinned)
        self._idle.remove(best)
        best.align(prompt)
        return best

    def find(self, tokens: Sequence[int]) -> Session | None:
        """The idle sequence that has as much of some tokens as any; None where none has one of them."""
        best, count = None, 0
        for session in self._idle:
            shared = common(session.tokens, tokens, len(tokens)) if session.known else 0
            if shared > count:
                best, count = session, shared
        return best

    def keep(self, session: Session) -> None:
        """Take back a sequence. Those that it continues are of no more use."""
        if not session.known or not session.tokens:
            session.close()
            return
        for other in list(self._idle):
            shared = common(session.tokens, other.tokens, len(other.tokens))
            if shared == len(other.tokens) and session.cache.exact_at(shared):
                self._drop(other)
        self._idle.append(session)
        if len(self._idle) > _MOST:
            self._drop(self._idle[0])

    def make_room(self) -> bool:
        """Give up the sequence least recently used. False: there is none."""
        if self._idle:
            self._drop(self._idle[0])
            return True
        return False

    def clear(self) -> None:
        """Give up all."""
        while self.make_room():
            pass

    def recover(self) -> None:
        """After an interrupt: let no sequence stay that it left unknown, and no block that nobody has."""
        for session in list(self._idle):
            if not session.known:
                self._drop(session)
        self.pools.recount()

    def _drop(self, session: Session) -> None:
        self._idle.remove(session)
        session.close()
