"""Text that the model writes itself: samples drawn from its own distribution, at temperature 1.

A model's own text needs no file, is in its own languages, and lies where the model is sure of itself and where it is
not as often as its training text did (LLM-QAT, arXiv:2305.17888). Many sequences are written at once, all at the same
position, so that a matrix is read once for all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edge import graph as graphs
from edge.errors import OptionError
from edge.graph import LOGITS, TOKENS, Graph
from edge.ops import OPS, Attention, Op, Select
from edge.options import GenerateOptions
from edge.sampling import Sampler
from edge.tokenizer import Tokenizer
from exporters import threads
from exporters.architectures import Model
from exporters.calibration import cost, text
from exporters.calibration.text import Calibration
from exporters.calibration.walk import by_window
from exporters.reference import EVALUATORS
from exporters.reference.state import Array, Kept, Reader, Step, WeightCache

NAME = "self"  # in the place of a text's
TOGETHER = 16  # sequences a thread works on
_OPTIONS = GenerateOptions(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0)
_LEAST_LETTERS = 3

Progress = Callable[[float], None]


def write(
    graph: Graph, read: Reader, tokenizer: Tokenizer, *, size: tuple[int, int], seed: int, progress: Progress
) -> tuple[tuple[int, ...], ...]:  # fmt: skip
    """Sequences of ids, `size` = (how many, of what length). The number of threads does not change them.

    A sequence begins with a bos if the tokenizer adds one, and a word drawn from the vocabulary; where the model ends
    its text, another word begins the next.
    """
    weights, visible = WeightCache(read, keep=True), by_window(graph)
    count, length = size
    words = _words(tokenizer, graph.spec.vocab_size)
    batches = [range(start, min(start + TOGETHER, count)) for start in range(0, count, TOGETHER)]
    done = [0] * len(batches)

    def run(number: int) -> list[list[int]]:
        writers = [_Writer(tokenizer, words, graph.spec.vocab_size, (seed, index)) for index in batches[number]]
        kept: list[dict[str, Kept]] = [{} for _ in writers]
        for position in range(length):
            if position:
                step = Step(graph.spec, weights, np.full(len(writers), position - 1), {}, visible, length)
                logits = _forward(graph, step, kept, [writer.ids[-1] for writer in writers])
                for writer, row in zip(writers, logits, strict=True):
                    writer.logits = row
            for writer in writers:
                writer.choose()
            done[number] += len(writers)
            progress(sum(done) / (count * length))
        return [writer.ids for writer in writers]

    with threads.pool() as pool:
        found = list(pool.map(run, range(len(batches))))
    return tuple(tuple(ids) for batch in found for ids in batch)


def check(model: Model) -> None:
    """Raise OptionError for a model that is too large: its weights are read again for each token."""
    needed, found = 4 * graphs.build(model.spec).parameters, cost.available()
    if found is not None and needed > found:
        raise OptionError(
            f"to write its own text the model takes {needed / 1e9:.1f} GB of memory in float32, and "
            f"{found / 1e9:.1f} GB are available; give --calibration a text, or leave it out"
        )


def read(model: Model, tokenizer: Tokenizer, measured: Sequence[str], progress: Progress) -> Calibration:
    """As many samples as are taken of a text. Raises what `text.check_apart` does, and NumericsError for bad logits."""
    graph = graphs.build(model.spec)
    length = min(text.LENGTH, model.spec.context)
    samples = write(
        graph, lambda name, start, stop: model.weights[name].read(start, stop), tokenizer,
        size=(max(1, text.TOKENS // length), length), seed=text.SEED, progress=progress,
    )  # fmt: skip
    text.check_apart(NAME, map(tokenizer.decode, samples), measured)
    return Calibration(NAME, hashlib.sha256(np.asarray(samples, "<i8").tobytes()).hexdigest(), samples)


class _Writer:
    """One sequence: the ids so far, and `logits` for the next one."""

    def __init__(self, tokenizer: Tokenizer, words: npt.NDArray[np.int64], vocab: int, seed: tuple[int, int]) -> None:
        rng = np.random.default_rng(seed)
        options = replace(_OPTIONS, seed=int(rng.integers(1 << 53)))
        self._sampler = Sampler(options, vocab, padded=tokenizer.padded(vocab), core="numpy")
        self._prefix, self._eos = tokenizer.with_bos([]), tokenizer.eos
        self._words, self._rng = words, rng
        self.ids: list[int] = []
        self.logits: Array | None = None

    def choose(self) -> None:
        """Append the next id."""
        at = len(self.ids)
        if at < len(self._prefix):
            self.ids.append(self._prefix[at])
        elif self.logits is None or at == len(self._prefix) or self.ids[-1] in self._eos:
            self.ids.append(int(self._words[_by_rank(len(self._words), self._rng.random())]))
        else:
            self.ids.append(self._sampler.sample(self.logits))


def _words(tokenizer: Tokenizer, vocab: int) -> npt.NDArray[np.int64]:
    """The ids that are words or beginnings of words, or any that show, where there are none: for a text's first token.

    Vocabularies are in the order in which they were merged, the frequent ones first.
    """
    shown = [token for token in range(min(vocab, tokenizer.vocab_size)) if not tokenizer.is_silent(token)]
    texts = ((token, tokenizer.decode([token]).strip()) for token in shown)
    words = [token for token, text in texts if len(text) >= _LEAST_LETTERS and text.isalpha()]
    return np.asarray(words or shown, np.int64)


def _by_rank(count: int, u: float) -> int:
    """A rank from 0 on for u in [0, 1), rank r as often as 1 / (r + 1): Zipf's law."""
    return min(int((count + 1.0) ** u) - 1, count - 1)


def _forward(graph: Graph, step: Step, kept: Sequence[dict[str, Kept]], tokens: Sequence[int]) -> Array:
    """Logits after one more token of each sequence, [sequences, vocab]."""
    values: dict[str, Any] = {TOKENS: np.asarray(tokens, np.int64)}
    for op in graph.ops:
        inputs = [values[name] for name in op.inputs]
        if isinstance(op.attrs, Select):
            values[op.output] = inputs[0]
        elif OPS[type(op.attrs)].attends is None:
            values[op.output] = EVALUATORS[type(op.attrs)](step, op.attrs, inputs)
        else:
            values[op.output] = _attend(step, op, inputs, kept)
    return np.asarray(values[LOGITS])


def _attend(step: Step, op: Op[Any], inputs: Sequence[Array], kept: Sequence[dict[str, Kept]]) -> Array:
    """An op that looks at what was kept, for sequences that do not see each other."""
    one = step.positions[:1]
    if isinstance(op.attrs, Attention):  # as one token with the heads of all: one call instead of many
        count = len(inputs[0])
        attrs = replace(op.attrs, heads=count * op.attrs.heads, kv_heads=count * op.attrs.kv_heads)
        joint = replace(step, positions=one, kept=kept[0])
        return EVALUATORS[Attention](joint, attrs, [x.reshape(1, -1) for x in inputs]).reshape(count, -1)
    found = [
        EVALUATORS[type(op.attrs)](replace(step, positions=one, kept=own), op.attrs, [x[i : i + 1] for x in inputs])
        for i, own in enumerate(kept)
    ]
    return np.concatenate(found)
