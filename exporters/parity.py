"""Parity: artefacts against the float32 reference on a short text, and the quantized model against its source.

exact     decoder-exact.onnx against the reference with the same dequantized weights: it must agree, or the export fails
decoder   decoder.onnx against the same: what int8 activations cost
source    the dequantized weights against the source's own: what quantization cost
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge import texts
from edge.bundle import TOKENIZER, Bundle
from edge.errors import NumericsError
from edge.kv import KvDtype, plan_layout
from edge.options import RuntimeOptions
from edge.runtime import Runtime, open_runtime
from edge.session import Session
from edge.tokenizer import Tokenizer
from exporters.checkpoint import SourceTensor
from exporters.reference import KEEP_LIMIT, Array, Reader, Reference

TEXT = Path(__file__).parent / "parity.txt"
TOKENS = 128
TOLERANCE = 1e-3  # of exact, in units of the logits' standard deviation where that is above 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """Logits of a model against those of a reference, over some positions.

    max_diff, deviation  largest difference of a logit, and the reference's standard deviation
    mean_kl              KL(reference ‖ model), nats a token
    top1                 share of positions with the same most likely token
    """

    tokens: int
    max_diff: float
    deviation: float
    mean_kl: float
    top1: float


def compare(reference: Array, found: Array) -> Comparison:
    """Both [tokens, vocab]."""
    a, b = (_log_softmax(x.astype(np.float64)) for x in (reference, found))
    return Comparison(
        tokens=len(reference),
        max_diff=float(np.abs(reference - found).max()),
        deviation=float(reference.std()),
        mean_kl=float((np.exp(a) * (a - b)).sum(axis=-1).mean()),
        top1=float((reference.argmax(-1) == found.argmax(-1)).mean()),
    )


def _log_softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    x = x - x.max(axis=-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))


class Parity:
    """The reference's logits for a bundle, [tokens, vocab], and comparisons with them."""

    def __init__(self, bundle: Bundle, tokens: int = TOKENS) -> None:
        self.bundle = bundle
        self.ids = sample_ids(bundle, tokens)
        self.expected = self._reference(bundle.weights.read).run(self.ids)

    def exact(self) -> Comparison:
        """decoder-exact.onnx. Raises NumericsError when it does not agree with the reference."""
        found = compare(self.expected, run_graph(self.bundle, self.ids, exact=True))
        allowed = TOLERANCE * max(1.0, found.deviation)
        if not found.max_diff <= allowed:
            raise NumericsError(
                f"{self.bundle.path}: the exact ONNX graph differs from the reference by {found.max_diff:.2g} in a "
                f"logit, {allowed:.2g} is allowed: do not ship it"
            )
        return found

    def decoder(self, bundle: Bundle) -> Comparison:
        """decoder.onnx of the bundle, or of a draft of it."""
        return compare(self.expected, run_graph(bundle, self.ids, exact=False))

    def source(self, source: Mapping[str, SourceTensor]) -> Comparison:
        """The dequantized weights, against the source's own as the reference."""
        return compare(self._reference(source_reader(source)).run(self.ids), self.expected)

    def _reference(self, read: Reader) -> Reference:
        # It runs once, so nothing is worth keeping; the context is the one that `run_graph` plans.
        return Reference(self.bundle.graph, read, context=len(self.ids), keep=False)


def check(bundle: Bundle) -> dict[str, Any]:
    """Compare both graphs of a bundle with the reference: {"tokens", "exact", "decoder"}.

    Raises NumericsError when the exact graph does not agree.
    """
    parity = Parity(bundle)
    return {
        "tokens": len(parity.ids),
        "exact": asdict(parity.exact()),
        "decoder": asdict(parity.decoder(bundle)),
    }


def affordable(bundle: Bundle) -> bool:
    """Whether a check fits an export: larger models are checked on demand, since a runtime holds them whole."""
    return bundle.graph.parameters <= KEEP_LIMIT


def sample_ids(bundle: Bundle, tokens: int) -> list[int]:
    """The first ids of the shipped text, repeated if the tokenizer makes too few of it."""
    info = bundle.manifest.tokenizer
    text = bundle.read_text(TOKENIZER)
    assert text is not None
    tokenizer = Tokenizer(text, bos=info.bos, eos=info.eos, add_bos=info.add_bos, special=info.special)
    ids = tokenizer.encode_prompt(texts.read(TEXT))
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
        session = Session(opened, "error")
        return np.concatenate([session.step(ids[i : i + chunk], "all") for i in range(0, len(ids), chunk)])
    finally:
        opened.close()
