"""Measuring: a bundle as the runtime that people will get runs it, on texts, next to another model or alone.

All models go through a text side by side, CHUNK tokens at a time, so that memory does not grow with its length.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edge.errors import DeviceError, OptionError, UnsupportedError
from edge.kv import KvDtype
from edge.measured import Closeness, Copies, Greedy, Measured, Measurement, TextSource
from edge.progress import Progress
from edge.runtime import chosen, kept_kv
from edge.tokenizer import Tokenizer, open_tokenizer
from exporters.distance import FIRST, Distance, Rows
from exporters.report import copying, greedy
from exporters.report.models import CHUNK, FromBundle, Model, Opener

SHORT, TOKENS = 512, 8192  # tokens a sample, and of each text
LONG = "prose"  # the text that is also read as one sequence, as long as the model was trained for or as TOKENS
KVS: tuple[KvDtype, ...] = ("auto", "int8")
_PROMPTS = 8  # samples of a text whose beginnings are answered


@dataclass(frozen=True, slots=True)
class Text:
    """A text and where it is from; the ids of its samples, each a sequence by itself, by their length."""

    name: str
    source: TextSource
    samples: Mapping[int, tuple[tuple[int, ...], ...]]


def describe_text(name: str, content: str, source: str, terms: str, bundle: FromBundle) -> Text:
    """Raises OptionError for a text that is too short."""
    tokenizer = open_tokenizer(bundle.bundle)
    ids, context = tokenizer.encode(content), bundle.spec.context
    found = TextSource(source, terms, hashlib.sha256(content.encode()).hexdigest())
    short = cut(ids, min(SHORT, context), tokenizer)
    if not short or len(short[0]) <= FIRST + 1:
        raise OptionError(f"text {source} is {len(ids)} tokens; more than {FIRST} are needed")
    samples = {len(short[0]): short}
    long = cut(ids, min(TOKENS, context), tokenizer)[:1] if name == LONG else ()
    return Text(name, found, {**{len(item): (item,) for item in long}, **samples})


def cut(ids: Sequence[int], length: int, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Samples of equal length from the first TOKENS ids, each after a bos if the tokenizer adds one; a shorter text is
    one shorter sample."""
    prefix = tokenizer.with_bos([])
    own = length - len(prefix)
    starts = range(0, min(len(ids), TOKENS), own)
    whole = tuple((*prefix, *ids[start : start + own]) for start in starts)
    return tuple(item for item in whole if len(item) == length) or whole[:1]


@dataclass(slots=True)
class _Row:
    """A measurement that is being made: one way to keep keys and values."""

    model: Model
    kv: KvDtype
    distance: Distance = field(default_factory=Distance)
    hits: int = 0
    agreed: list[int] = field(default_factory=list)
    tokens: int = 0


def measure(bundle: FromBundle, other: Opener | None, name: str, texts: Sequence[Text], progress: Progress) -> Measured:
    """Measure a bundle on texts; `name` is what `other` is called. Raises what opening models raises."""
    runtime = chosen(bundle.bundle, bundle.options)
    kvs, refused = _ways(bundle)
    total = sum(len(sample) for text in texts for samples in text.samples.values() for sample in samples)
    meter = _Meter(progress, total)
    rows = [
        row
        for text in texts
        for length, samples in text.samples.items()
        for row in _Group(bundle, other, text.name, kvs).measure(length, samples, meter)
    ]
    progress("measure", 1.0)
    return Measured(runtime, name, {text.name: text.source for text in texts}, tuple(rows), refused)


def _ways(bundle: FromBundle) -> tuple[tuple[KvDtype, ...], dict[str, str]]:
    """The ways to keep keys and values that are measured, and why the others are not."""
    found: list[KvDtype] = []
    refused: dict[str, str] = {}
    for kv in KVS if bundle.options.kv_dtype == "auto" else (bundle.options.kv_dtype,):
        try:
            kept_kv(bundle.bundle, replace(bundle.options, kv_dtype=kv))
        except (UnsupportedError, DeviceError) as error:
            if kv == bundle.options.kv_dtype:
                raise
            refused[kv] = str(error)
        else:
            found.append(kv)
    return tuple(found), refused


@dataclass(slots=True)
class _Meter:
    progress: Progress
    total: int
    done: int = 0

    def add(self, tokens: int) -> None:
        self.done += tokens
        self.progress("measure", min(1.0, self.done / self.total))


@dataclass(frozen=True, slots=True)
class _Group:
    """The rows of one text at one length."""

    bundle: FromBundle
    other: Opener | None
    text: str
    kvs: tuple[KvDtype, ...]

    def measure(self, length: int, samples: Sequence[Sequence[int]], meter: _Meter) -> list[Measurement]:
        tokenizer, spans, copied = open_tokenizer(self.bundle.bundle), 0, 0
        with contextlib.ExitStack() as stack:
            other = stack.enter_context(self.other(length)) if self.other else None
            rows = [_Row(stack.enter_context(self._own(kv)(length)), kv) for kv in self.kvs]
            for number, ids in enumerate(samples):
                found = copying.repeated(tokenizer, ids)
                spans += len(found)
                tops = self._sample(ids, other, rows, meter)
                copied += copying.copied(found, ids, tops[0])
                for row, top in zip(rows, tops[1:], strict=True):
                    row.hits += copying.copied(found, ids, top)
                if other is not None and number < _PROMPTS and length >= greedy.PROMPT + greedy.TOKENS:
                    _answer(ids, other, rows)
        return [self._told(row, length, spans, copied) for row in rows]

    def _own(self, kv: KvDtype) -> FromBundle:
        options = self.bundle.options
        return FromBundle(self.bundle.bundle, options.runtime, kv, device=options.device)

    def _sample(self, ids: Sequence[int], other: Model | None, rows: Sequence[_Row], meter: _Meter) -> list[np.ndarray]:
        """One sample through all models; the most likely tokens of the other model, then of each row's."""
        for model in [*([other] if other else []), *(row.model for row in rows)]:
            model.start()
        seen: list[list[Rows]] = [[] for _ in rows]
        for start in range(0, len(ids), CHUNK):
            part = ids[start : start + CHUNK]
            expected = None if other is None else other.run(part)
            for row, into in zip(rows, seen, strict=True):
                logits = row.model.run(part)
                into.append(row.distance.add(logits if expected is None else expected, logits, ids, start))
                row.tokens += len(part)
            meter.add(len(part))
        first = np.concatenate([item.reference_top for item in seen[0]])
        return [first, *(np.concatenate([item.top for item in into]) for into in seen)]

    def _told(self, row: _Row, length: int, spans: int, copied: int) -> Measurement:
        kept = kept_kv(self.bundle.bundle, self._own(row.kv).options)[1]
        counts = {dtype: kept.count(dtype) for dtype in sorted(set(kept))}
        distance = row.distance
        told = Measurement(self.text, row.kv, counts, length, row.tokens, distance.perplexity)
        if self.other is None:
            return told
        closeness = Closeness(
            perplexity=distance.reference_perplexity,
            mean_kl=distance.mean_kl,
            p99_kl=distance.p99_kl,
            top1=distance.top1,
            top5=distance.top5,
            kl_by_position={str(end): kl for end, kl in distance.by_position().items()},
            copies=Copies(spans, copied / spans, row.hits / spans) if spans else None,
            greedy=_greedy(row.agreed),
        )
        return replace(told, against=closeness)


def _answer(ids: Sequence[int], other: Model, rows: Sequence[_Row]) -> None:
    """Let each row's model answer the beginning of a sample."""
    prompt = ids[: greedy.PROMPT]
    for row in rows:
        answer = greedy.answer(row.model, prompt, greedy.TOKENS)
        row.agreed.append(greedy.agreed(other, prompt, answer))


def _greedy(agreed: Sequence[int]) -> Greedy | None:
    if not agreed:
        return None
    same = sum(count == greedy.TOKENS for count in agreed) / len(agreed)
    return Greedy(len(agreed), greedy.TOKENS, sum(agreed) / len(agreed), same)
