"""Evaluating a bundle on a text, as the runtime that people will get computes it, alone or against another model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from edge import bundle as bundles
from edge import graph as graphs
from edge import texts
from edge.bundle import Bundle
from edge.errors import NotFoundError, OptionError
from edge.kv import KvDtype
from edge.progress import Progress
from edge.tokenizer import open_tokenizer
from exporters import parity
from exporters.architectures import describe
from exporters.checkpoint.open import open_checkpoint
from exporters.distance import FIRST, Distance, Logits
from exporters.reference import Reference

LENGTH, MOST = 512, 16  # tokens a sample, and samples
Model = Callable[[list[int]], Logits]  # ids → logits of each, [ids, vocab]


@dataclass(frozen=True, slots=True)
class Against:
    """A bundle next to another model: KL(other ‖ bundle), nats a token, and agreement, from position 64 of a sample."""

    perplexity: float
    mean_kl: float
    p99_kl: float
    top1: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`tokens` in `samples` that are sequences by themselves; `against` None where there was no other model."""

    tokens: int
    samples: int
    perplexity: float
    against: Against | None


def evaluate(
    bundle: Bundle, text: Path, against: Path | None, progress: Progress, *, runtime: str = "auto",
    kv_dtype: KvDtype = "auto",
) -> Evaluation:  # fmt: skip
    """Run a bundle over the beginning of a text, at most 16 samples of 512 tokens.

    `against` is another bundle, run by the same runtime, or a checkpoint, run in float32 by the reference interpreter.
    Raises NotFoundError, OptionError for a text that is too short or another vocabulary, and what opening raises.
    """
    parts = samples(bundle, text)

    def run(ids: list[int]) -> Logits:
        return parity.run_graph(bundle, ids, exact=False, chunk=256, runtime=runtime, kv_dtype=kv_dtype)

    own, other = Distance(), Distance()
    with _other(against, bundle, runtime) as model:
        for number, ids in enumerate(parts):
            progress("evaluate", number / len(parts))
            found = run(ids)
            expected = found if model is None else model(ids)
            own.add(expected, found, ids)
            other.add(expected, expected, ids)
        progress("evaluate", 1.0)
    told = None if against is None else Against(other.perplexity, own.mean_kl, own.p99_kl, own.top1)
    return Evaluation(sum(map(len, parts)), len(parts), own.perplexity, told)


def samples(bundle: Bundle, text: Path) -> list[list[int]]:
    """The text's first samples of ids, each after a bos if the tokenizer adds one."""
    try:
        content = texts.read(text)
    except FileNotFoundError as error:
        raise NotFoundError(f"no text {str(text)!r}: there is no such file") from error
    except (OSError, ValueError) as error:
        raise OptionError(f"text {text}: {error}") from error
    tokenizer = open_tokenizer(bundle)
    ids, prefix = tokenizer.encode(content), tokenizer.with_bos([])
    own = min(LENGTH, bundle.spec.context) - len(prefix)
    whole = [[*prefix, *ids[start : start + own]] for start in range(0, min(len(ids), own * MOST), own)]
    found = [part for part in whole if len(part) == own + len(prefix)] or whole[:1]
    if not found or len(found[0]) <= FIRST + 1:
        raise OptionError(f"text {text} is {len(ids)} tokens; more than {FIRST} are needed")
    return found


@contextlib.contextmanager
def _other(path: Path | None, bundle: Bundle, runtime: str) -> Iterator[Model | None]:
    if path is None:
        yield None
    elif (path / bundles.MANIFEST).is_file():
        opened = bundles.open_bundle(path)
        _check_vocabulary(path, opened.spec.vocab_size, bundle)
        yield lambda ids: parity.run_graph(opened, ids, exact=False, chunk=256, runtime=runtime)
    else:
        with contextlib.closing(open_checkpoint(path)) as checkpoint:
            model = describe(checkpoint)
            _check_vocabulary(path, model.spec.vocab_size, bundle)
            read = parity.source_reader(model.weights)
            reference = Reference(graphs.build(model.spec), read, context=min(LENGTH, bundle.spec.context))

            def run(ids: list[int]) -> Logits:
                reference.reset()
                return reference.run(ids)

            yield run


def _check_vocabulary(path: Path, size: int, bundle: Bundle) -> None:
    if size != bundle.spec.vocab_size:
        raise OptionError(
            f"{path} has a vocabulary of {size} tokens and {bundle.path} one of {bundle.spec.vocab_size}: their logits "
            "cannot be compared"
        )
