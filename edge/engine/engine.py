"""Many answers from one model: each step is one pass over the weights for all that can go on.

An answer waits until it gets a sequence, is computed step by step, and ends. One whose reader is behind pauses alone.
Where keys and values have no room for all, idle sequences go first, then those of paused answers, then of the latest;
what they lose is computed again, to the same tokens: a row's bits do not depend on its neighbours.

No threads here, and an interrupt may come at any line: `edge.engine.readers` has the former, and after the latter
the next step lets every sequence and sampler stand where the tokens say.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import SupportsInt

import numpy as np
import numpy.typing as npt

from edge.engine.answer import Answer, End, Made
from edge.engine.residents import Residents
from edge.engine.schedule import MOST_RUNNING, choose
from edge.errors import BusyError, ClosedError, OptionError, PoolFullError
from edge.loops import is_loop
from edge.results import Request, TokenEvent
from edge.runtime import Batch, Runtime, Segment
from edge.sampling import Sampler
from edge.session import common

Logits = npt.NDArray[np.float32]
_MOST_WAITING = 256
_WORTH_WAITING = 64  # tokens of a prompt that another answer is about to have computed


@dataclass(frozen=True, slots=True)
class Event:
    """What a step brought for an answer: a token, or its end."""

    answer: int
    token: TokenEvent | None = None
    end: End | None = None


class Engine:
    """`answers` are those that have not ended, by number, in the order in which they came."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.residents = Residents(runtime)
        self.answers: dict[int, Answer] = {}
        self._new: list[Answer] = []  # added since the latest step began: in another thread's there may be one running
        self._next = 0
        self._turn = 0
        self._crowded = False  # an answer has lost its sequence since the last one ended
        self._changing = False  # still so at the beginning of a step: an interrupt came within the one before

    def add(self, request: Request, sampler: Sampler, *, paced: bool = False) -> Answer:
        """Have a request answered; `Answer.number` is its id.

        Raises PromptTooLongError, and BusyError while as many answers are under way as may be.
        """
        under_way = sum(
            answer.end is None and not answer.aborted for answer in [*list(self.answers.values()), *self._new]
        )
        if under_way >= _MOST_WAITING:
            raise BusyError(f"{under_way} answers are under way already; wait for some, or read them to the end")
        self.residents.check(len(request.prompt))
        self._next += 1
        answer = Answer(self._next, request, sampler, paced=paced)
        self._new.append(answer)
        return answer

    def abort(self, number: int) -> None:
        """End an answer, from the next step on. Raises OptionError for one that is not under way."""
        for answer in [*list(self.answers.values()), *self._new]:
            if answer.number == number:
                answer.aborted = True
                return
        raise OptionError(f"no answer {number} is under way")

    def step(self) -> list[Event]:
        """Compute a token of every answer that can go on, or a part of its prompt. Nothing to do: no events.

        Raises ClosedError where the runtime is closed. Whatever else goes wrong ends the answers that it concerns.
        """
        if self._changing:
            self._recover()
        self._changing = True
        self._take_in()
        before = [(answer, len(answer.made)) for answer in self.answers.values()]
        self.tidy()
        self._admit()
        running = [answer for answer in self.answers.values() if answer.session and not answer.paused]
        chosen = choose(running, self.runtime.layout.chunk, self._turn)
        self._turn += 1
        began = time.perf_counter()
        self._run(self._segments(chosen), began)
        self.tidy()
        self._changing = False
        return _events(before)

    def tidy(self) -> None:
        """Take what ended or cancelled answers held; their sequences stay for later ones that begin alike."""
        for answer in list(self.answers.values()):
            if answer.cancelled:
                answer.finish("cancel")
            if answer.end is not None:
                self._crowded = False
                session, answer.session = answer.session, None
                if session is not None:
                    self.residents.keep(session)
                del self.answers[answer.number]

    def _take_in(self) -> None:
        while self._new:
            self.answers[self._new[0].number] = self._new[0]
            del self._new[0]

    def settle(self) -> None:
        """Between steps: let ended answers' sequences be idle ones."""
        if self._changing:
            self._recover()
        self._changing = True
        self._take_in()
        self.tidy()
        self._changing = False

    def forget(self) -> None:
        """Give up all sequences that no answer uses."""
        self.settle()
        self._changing = True
        self.residents.clear()
        self._changing = False

    def _recover(self) -> None:
        """An interrupt came within the step before."""
        self.residents.recover()
        for answer in self.answers.values():
            answer.restore_sampler()
            if answer.session is not None:
                answer.session.align(answer.history)

    def _admit(self) -> None:
        """Give sequences to answers that wait, first come first served."""
        running = [answer for answer in self.answers.values() if answer.session]
        going = sum(not answer.paused for answer in running)
        for answer in self.answers.values():
            if answer.session or answer.paused or self._waits_for_another(answer, running):
                continue
            if going >= MOST_RUNNING or (self._crowded and going):
                return
            if not self._begin(answer, running):
                return
            running.append(answer)
            going += 1

    def _begin(self, answer: Answer, running: list[Answer]) -> bool:
        """Give an answer a sequence. False: there is none."""
        while True:
            try:
                sessions = [other.session for other in running if other.session]
                answer.session = self.residents.begin(answer.history, sessions, pinned=answer.request.pinned)
                break
            except PoolFullError:
                paused = [other for other in running if other.session and other.paused]
                if not paused:
                    return False
                self._take_from(paused[-1])
        if answer.cached is None:
            answer.cached = len(answer.session.tokens)
            answer.prefill_began = time.perf_counter()
        return True

    @staticmethod
    def _waits_for_another(answer: Answer, running: list[Answer]) -> bool:
        """Whether another answer computes a prompt that begins like this one's: it is then computed once."""
        for other in running:
            if other.session is None or other.paused or other.left <= 1:
                continue
            shared = common(answer.history, other.history, len(answer.history) - 1)
            if shared - len(other.session.tokens) >= _WORTH_WAITING:
                return True
        return False

    def _take_from(self, answer: Answer) -> None:
        """Take an answer's sequence away; it waits for another one."""
        session, answer.session = answer.session, None
        if session is not None:
            session.close()

    def _segments(self, chosen: list[tuple[Answer, int]]) -> list[tuple[Answer, Segment]]:
        """Take the slots of a step; an answer that finds none waits for the next one."""
        found: list[tuple[Answer, Segment]] = []
        for answer, count in chosen:
            while answer.session is not None:
                done = len(answer.session.tokens)
                rows = int(count == answer.left)
                try:
                    found.append((answer, answer.session.segment(answer.history[done : done + count], rows)))
                except PoolFullError as error:
                    if self._make_room([*[other for other, _ in found], answer]):
                        continue
                    if not found:
                        answer.fail(error)
                except Exception as error:
                    answer.fail(error)
                break
        return found

    def _make_room(self, busy: list[Answer]) -> bool:
        """Have somebody give up blocks: idle sequences, then answers that are not in the step. False: nobody can."""
        if self.residents.make_room():
            return True
        others = [answer for answer in self.answers.values() if answer.session and answer not in busy]
        if not others:
            return False
        victim = next((answer for answer in reversed(others) if answer.paused), others[-1])
        self._crowded = self._crowded or not victim.paused
        self._take_from(victim)
        return True

    def _run(self, parts: list[tuple[Answer, Segment]], began: float) -> None:
        """One pass for all; where it fails, each by itself, so that only those fail that are at fault."""
        if not parts:
            return
        # A core on the device draws there; who asks for probabilities has all logits brought to the host.
        core = self.runtime.capabilities.sampling
        on_device = core is not None and all(
            answer.sampler.core == core and answer.request.options.top_logprobs is None for answer, _ in parts
        )
        try:
            results = self.runtime.forward(Batch(tuple(segment for _, segment in parts), on_device=on_device))
        except ClosedError:
            raise
        except Exception as error:
            if len(parts) == 1:
                parts[0][0].fail(error)
                return
            for part in parts:
                self._run([part], began)
            return
        drawn = [self._settle(*part, logits) for part, logits in zip(parts, results, strict=True)]
        for (answer, _), logits, token in zip(parts, results, drawn, strict=True):
            if token is not None:
                try:
                    self._draw(answer, logits[-1], token, began)
                except Exception as error:
                    answer.fail(error)

    @staticmethod
    def _settle(answer: Answer, segment: Segment, logits: Logits) -> SupportsInt | None:
        """Keep what a pass computed for an answer, and begin to draw its token if its logits are there."""
        if answer.session is None:
            return None
        answer.session.commit(segment.tokens.tolist())
        if not len(logits):
            return None
        try:
            return answer.sampler.start(logits[-1])
        except Exception as error:
            answer.fail(error)
            return None

    def _draw(self, answer: Answer, logits: Logits, drawn: SupportsInt, began: float) -> None:
        request, options, session = answer.request, answer.request.options, answer.session
        assert session is not None
        token = answer.sampler.finish(drawn, logits)
        now = time.perf_counter()
        if token in request.eos and not options.ignore_eos:
            answer.finish("stop", took=now - (began if answer.made else answer.prefill_began), at=now - answer.began)
            return
        logprob = None if options.top_logprobs is None else answer.sampler.logprob(logits, token)
        dropped = session.dropped
        event = TokenEvent(token, now - answer.began, max(0, dropped - answer.reported), logprob)
        took = now - (began if answer.made else answer.prefill_began)
        answer.sampler.accept(token)  # first: an interrupt behind it is taken back (`Answer.restore_sampler`)
        answer.made.append(Made(event, took))
        answer.reported = max(dropped, answer.reported)
        if session.cache.room(1) == 0 or len(answer.made) == options.max_tokens:
            answer.finish("length")
        elif not options.ignore_eos and is_loop(answer.tokens):
            answer.finish("loop")


def _events(before: list[tuple[Answer, int]]) -> list[Event]:
    events = []
    for answer, count in before:
        events += [Event(answer.number, made.event) for made in answer.made[count:]]
        if answer.end is not None:
            events.append(Event(answer.number, end=answer.end))
    return events
