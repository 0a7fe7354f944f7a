"""Evaluating a bundle on texts, as the runtime that people will get computes it, alone or against another model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edge import texts as files
from edge.bundle import Bundle
from edge.errors import NotFoundError, OptionError
from edge.measured import Measured
from edge.progress import Progress
from edge.quality import QualityReport
from exporters import equalization, parity
from exporters.checkpoint import SourceTensor
from exporters.report import costs
from exporters.report import texts as held_out
from exporters.report.measure import Text, describe_text, measure
from exporters.report.models import FromBundle, FromWeights, Opener, opened
from exporters.report.prompts import Answers, compare

_COSTS_TEXT = "dialogue"  # or the first that there is


def evaluate(own: FromBundle, texts: Sequence[Path], against: Path | None, progress: Progress) -> Measured:
    """Run a bundle over the beginning of each text, at most 8192 tokens of it, or over the held-out ones for none.

    `against` is another bundle, run by the same runtime, or a checkpoint, run in float32 by the reference interpreter.
    Raises NotFoundError, OptionError for a text that is too short or another vocabulary, and what opening raises.
    """
    with other_model(against, own) as (model, name):
        return _measure(own, model, name, texts, progress)[0]


def report(own: FromBundle, texts: Sequence[Path], against: Path | None, progress: Progress) -> QualityReport:
    """The bundle's own report with what `evaluate` finds, and where `against` is a checkpoint with what parts cost."""
    with other_model(against, own) as (model, name):
        return _extended(own.bundle.manifest.quality, own, model, name, texts, progress)


def extend(
    found: QualityReport, bundle: Bundle, source: Mapping[str, SourceTensor], progress: Progress
) -> QualityReport:
    """An export's quick report made full, against its source. Raises what opening the runtime raises."""
    weights = FromWeights(bundle.graph, parity.source_reader(source))
    return _extended(found, FromBundle(bundle), weights, "source", (), progress)


def answer(own: FromBundle, prompts: Path, against: Path | None, limit: int, progress: Progress) -> Answers:
    """Answers to a file's prompts of at most `limit` tokens, next to those of `against`; see report.prompts."""
    with other_model(against, own) as (model, name):
        return compare(own, model, name, prompts, limit, progress)


def _extended(
    found: QualityReport, own: FromBundle, other: Opener | None, name: str, texts: Sequence[Path], progress: Progress
) -> QualityReport:
    measured, described = _measure(own, other, name, texts, progress)
    parts = None
    if isinstance(other, FromWeights):
        text = next((item for item in described if item.name == _COSTS_TEXT), described[0])
        ids = text.samples[min(text.samples)][0]
        bundle = own.bundle
        source = equalization.reader(other.read, bundle.graph, bundle.manifest.recipe)
        parts = costs.find(bundle.graph, source, bundle.weights.read, ids, progress)
    return replace(found, measured=measured, costs=parts)


def _measure(
    own: FromBundle, other: Opener | None, name: str, texts: Sequence[Path], progress: Progress
) -> tuple[Measured, list[Text]]:
    described, missing = ([_given(path, own) for path in texts], {}) if texts else built_in(own)
    found = measure(own, other, name, described, progress)
    return replace(found, refused={**missing, **found.refused}), described


def built_in(bundle: FromBundle) -> tuple[list[Text], dict[str, str]]:
    """The held-out texts, and why some are not there."""
    found: list[Text] = []
    missing: dict[str, str] = {}
    for name, domain in held_out.DOMAINS.items():
        content = held_out.read(name)
        if content is None:
            missing[name] = f"{domain.source} is not installed as text here"
        else:
            found.append(describe_text(name, content, domain.source, domain.license, bundle))
    return found, missing


def _given(path: Path, bundle: FromBundle) -> Text:
    try:
        content = files.read(path)
    except FileNotFoundError as error:
        raise NotFoundError(f"no text {str(path)!r}: there is no such file") from error
    except (OSError, ValueError) as error:
        raise OptionError(f"text {path}: {error}") from error
    return describe_text(path.stem, content, path.name, "", bundle)


@contextlib.contextmanager
def other_model(path: Path | None, own: FromBundle) -> Iterator[tuple[Opener | None, str]]:
    """The model to compare with, and what it is called. Raises OptionError for another vocabulary."""
    if path is None:
        yield None, ""
        return
    with opened(path, own.options.runtime) as (model, name):
        size = model.spec.vocab_size
        if size != own.spec.vocab_size:
            raise OptionError(
                f"{path} has a vocabulary of {size} tokens and {own.bundle.path} one of {own.spec.vocab_size}: their "
                "logits cannot be compared"
            )
        yield model, name
