"""An answer's steps for asyncio: each runs in a thread of the answer's own, so that none waits for another's.

A pool of threads would do for one answer. With many, those that wait for a step would hold all of its threads, and
the one that is to step would find none.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Steps:
    """Runs functions in one daemon thread, one after another.

    `give_up` is called when the task that waits is cancelled.
    """

    def __init__(self, give_up: Callable[[], None]) -> None:
        self._give_up = give_up
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def call(self, work: Callable[[], T]) -> T:
        """What the work returns or raises; it must not raise StopIteration, which no future can hold."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(method: Callable[[Any], None], value: Any) -> None:
            if not future.done():
                method(value)

        def step() -> None:
            try:
                outcome: tuple[Callable[[Any], None], Any] = (future.set_result, work())
            except BaseException as error:
                outcome = (future.set_exception, error)
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, *outcome)

        if self._thread is None:
            self._thread = threading.Thread(target=_serve, args=(self._waiting,), daemon=True)
            self._thread.start()
        self._waiting.put(step)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._give_up()
            await asyncio.wait([future])  # the step ends soon, and until then nobody else may touch the answer
            if not future.cancelled():
                future.exception()  # looked at, so that asyncio does not report it
            raise

    def close(self) -> None:
        """Let the thread end. Idempotent."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread = None


def _serve(waiting: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while step := waiting.get():
        step()
