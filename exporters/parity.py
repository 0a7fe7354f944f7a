"""Parity: what each runtime computes with a bundle, against the float32 reference on a short text.

For every runtime that the bundle serves and that works here: with float activations it must agree with the reference
on the bundle's own weights, or the export fails; as it is used, the difference from that is what its arithmetic costs,
and the difference from the source's weights what becomes of the model. See edge.quality for the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge import artefacts, texts
from edge import runtime as backends
from edge.bundle import WEIGHTS, Bundle
from edge.contents import Artefact
from edge.errors import CheckpointError, DeviceError, NumericsError, UnsupportedError
from edge.kv import KvDtype, plan_layout
from edge.options import RuntimeOptions
from edge.quality import Comparison, ParityReport, RuntimeQuality
from edge.runtime import Runtime, open_runtime, support
from edge.session import Session
from edge.tokenizer import open_tokenizer
from exporters.checkpoint import SourceTensor
from exporters.ranges import Ranges
from exporters.reference import KEEP_LIMIT, Array, Observer, Reader, Reference

TEXT = Path(__file__).parent / "parity.txt"
TOKENS = 128
_NOISE = 1e-6  # differences of logits below it, in units of the largest one, are rounding
TOLERANCES = {"coreml-interpreter": 1e-4}  # of a backend whose sums are the reference's in another order
TOLERANCE = 1e-3  # of a backend's exact graph, in units of the logits' standard deviation where that is above 1
# What runs from the payload alone.
PAYLOAD = Artefact((WEIGHTS,), ("native",))


def compare(reference: Array, found: Array) -> Comparison:
    """Both [tokens, vocab]."""
    a, b = (_log_softmax(x.astype(np.float64)) for x in (reference, found))
    return Comparison(
        max_diff=float(np.abs(reference - found).max()),
        deviation=float(reference.std()),
        mean_kl=float((np.exp(a) * (a - b)).sum(axis=-1).mean()),
        top1=float((reference.argmax(-1) == found.argmax(-1)).mean()),
    )


def _log_softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    x = x - x.max(axis=-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))


class Parity:
    """The reference's logits for a bundle and for its source if there is one, [tokens, vocab], and what differs.

    `largest` is the largest magnitude of each value of the graph, by the bundle's weights (see exporters.ranges).
    """

    def __init__(
        self, bundle: Bundle, source: Mapping[str, SourceTensor] | None = None, *, tokens: int = TOKENS
    ) -> None:
        """Raises CheckpointError for a source that computes nothing: all logits alike, or not finite."""
        self.ids = sample_ids(bundle, tokens)
        ranges = Ranges(bundle.graph)
        self._expected = self._reference(bundle, bundle.weights.read, ranges)
        self.largest = ranges.largest
        self._source = None if source is None else self._reference(bundle, source_reader(source))
        for logits in (self._expected,) if self._source is None else (self._source, self._expected):
            if fault := _fault(logits):
                raise CheckpointError(f"the model's logits are {fault}: the checkpoint is damaged")

    def _reference(self, bundle: Bundle, read: Reader, observe: Observer | None = None) -> Array:
        # Each weight is used once, so dequantized weights are not kept; the context is the one that `run_graph` plans.
        return Reference(bundle.graph, read, context=len(self.ids), keep=False).run(self.ids, observe=observe)

    def exact(self, bundle: Bundle, runtime: str) -> Comparison:
        """A runtime with float activations. Raises NumericsError when it does not agree with the reference."""
        found = compare(self._held(bundle, runtime), run_graph(bundle, self.ids, exact=True, runtime=runtime))
        allowed = TOLERANCES.get(runtime, TOLERANCE) * max(1.0, found.deviation)
        if not found.max_diff <= allowed:
            raise NumericsError(
                f"{bundle.path}: runtime {runtime}, with exact activations, differs from the reference by "
                f"{found.max_diff:.2g} in a logit, {allowed:.2g} is allowed: do not ship it"
            )
        return found

    def _held(self, bundle: Bundle, runtime: str) -> Array:
        """The reference's logits, by the weights of the artefact that a runtime executes where it has its own."""
        for target, artefact in bundle.manifest.artefacts.items():
            if runtime in artefact.runtimes and target in artefacts.CHECKS:
                return self._reference(bundle, artefacts.find(target).weights(bundle))
        return self._expected

    def used(self, bundle: Bundle, runtime: str) -> Comparison:
        """A runtime as it is used, against the bundle's own weights."""
        return compare(self._expected, run_graph(bundle, self.ids, exact=False, runtime=runtime))

    def report(self, bundle: Bundle, target: str | None = None) -> ParityReport:
        """Compare every runtime that the bundle, or one target of it, serves and that runs it here.

        Raises NumericsError as `exact` does.
        """
        runtimes: dict[str, RuntimeQuality] = {}
        refused: dict[str, str] = {}
        for name in served(bundle, target):
            found = support(name)
            if not found.devices:
                refused[name] = found.reason
                continue
            try:
                runtimes[name] = self._runtime(bundle, name)
            except UnsupportedError as error:
                refused[name] = str(error)
        source = None if self._source is None else compare(self._source, self._expected)
        picked = _automatic()
        return ParityReport(len(self.ids), runtimes, picked if picked in runtimes else None, source, refused)

    def _runtime(self, bundle: Bundle, name: str) -> RuntimeQuality:
        exact = self.exact(bundle, name)
        logits = run_graph(bundle, self.ids, exact=False, runtime=name)
        total = None if self._source is None else compare(self._source, logits)
        return RuntimeQuality(exact, compare(self._expected, logits), total)


def _fault(logits: Array) -> str:
    """Why logits of some tokens, [tokens, vocab], say that the model computes nothing; empty if they do not."""
    if not np.isfinite(logits).all():
        return "not finite"
    least = _NOISE * np.abs(logits).max()
    if np.ptp(logits, axis=1).max() <= least:
        return "all alike, for every token of the vocabulary"
    if len(logits) > 1 and np.ptp(logits, axis=0).max() <= least:
        return "all alike, whatever the text"
    return ""


def _automatic() -> str | None:
    try:
        return backends.automatic()
    except DeviceError:
        return None


def served(bundle: Bundle, target: str | None = None) -> list[str]:
    """The runtimes that a bundle's artefacts, or one of them, are for, the fastest first."""
    chosen = [item for name, item in bundle.manifest.artefacts.items() if target in (None, name)]
    names = {name for artefact in chosen for name in artefact.runtimes}
    return [name for name in backends.RUNTIMES if name in names]


def usable(bundle: Bundle) -> list[str]:
    """Those of `served` that work on this machine."""
    return [name for name in served(bundle) if support(name).devices]


def check(bundle: Bundle, target: str | None = None) -> ParityReport:
    """Compare a bundle with the reference, on all runtimes that it serves or on those of one target's artefact.

    Raises NumericsError when a runtime does not agree.
    """
    return Parity(bundle).report(bundle, target)


def affordable(bundle: Bundle) -> bool:
    """Whether a check fits an export: larger models are checked on demand, since a runtime holds them whole."""
    return bundle.graph.parameters <= KEEP_LIMIT


def sample_ids(bundle: Bundle, tokens: int) -> list[int]:
    """The first ids of the shipped text, repeated if the tokenizer makes too few of it."""
    ids = open_tokenizer(bundle).encode_prompt(texts.read(TEXT))
    limit = min(tokens, bundle.spec.context)
    return (ids * -(-limit // max(1, len(ids))))[:limit]


def source_reader(source: Mapping[str, SourceTensor]) -> Reader:
    return lambda name, start, stop: source[name].read(start, stop)


def run_graph(
    bundle: Bundle, ids: list[int], *, exact: bool, chunk: int = 48, runtime: str = "onnx", kv_dtype: KvDtype = "auto"
) -> Array:
    """Logits of every token from a backend, [tokens, vocab], prefilled in chunks as in real use."""
    layout = plan_layout(bundle.spec, len(ids), chunk=chunk)
    opened: Runtime = open_runtime(bundle, layout, RuntimeOptions(runtime=runtime, exact=exact, kv_dtype=kv_dtype))
    try:
        session = Session(opened)
        return np.concatenate([session.step(ids[i : i + chunk], "all") for i in range(0, len(ids), chunk)])
    finally:
        opened.close()
