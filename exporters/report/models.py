"""What is measured: a model that makes logits of a sequence, piece by piece, whatever computes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from edge import bundle as bundles
from edge import graph as graphs
from edge.bundle import Bundle
from edge.decoder import DecoderSpec
from edge.kv import KvDtype, plan_layout
from edge.options import RuntimeOptions
from edge.runtime import open_runtime
from edge.session import Session
from exporters import parity
from exporters.architectures import describe
from exporters.checkpoint.open import open_checkpoint
from exporters.distance import Logits
from exporters.reference import KEEP_LIMIT, Array, Reader, Reference

CHUNK = 128  # tokens a forward: the logits of so many are in memory at a time, of each model


class Model(Protocol):
    """One sequence at a time."""

    def start(self) -> None:
        """Forget the sequence."""
        ...

    def run(self, ids: Sequence[int]) -> Logits:
        """Logits of further tokens of the sequence, at most CHUNK of them, [ids, vocab]."""
        ...


class FloatModel:
    """Float32 weights in the reference interpreter."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference

    def start(self) -> None:
        self._reference.reset()

    def run(self, ids: Sequence[int]) -> Logits:
        return self._reference.run(ids)


class RuntimeModel:
    """A bundle as a runtime runs it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def start(self) -> None:
        self._session.reset()

    def run(self, ids: Sequence[int]) -> Logits:
        return self._session.step(list(ids), "all")


class Opener(Protocol):
    """Something that can be measured at a length; closing it frees the model."""

    @property
    def spec(self) -> DecoderSpec: ...

    def __call__(self, length: int) -> contextlib.AbstractContextManager[Model]: ...


class FromBundle:
    """A bundle on a runtime. Opening raises what `open_runtime` raises."""

    def __init__(self, bundle: Bundle, runtime: str = "auto", kv: KvDtype = "auto", *, device: str = "auto") -> None:
        self.bundle, self.options = bundle, RuntimeOptions(runtime=runtime, kv_dtype=kv, device=device)

    @property
    def spec(self) -> DecoderSpec:
        return self.bundle.spec

    @contextlib.contextmanager
    def __call__(self, length: int) -> Iterator[Model]:
        runtime = open_runtime(self.bundle, plan_layout(self.spec, length, chunk=CHUNK), self.options)
        try:
            yield RuntimeModel(Session(runtime))
        finally:
            runtime.close()


class FromWeights:
    """Float32 weights, read by name, and kept where they are few enough: each length is a model of its own."""

    def __init__(self, graph: graphs.Graph, read: Reader) -> None:
        self.graph = graph
        self.read = _kept(read) if graph.parameters <= KEEP_LIMIT else read

    @property
    def spec(self) -> DecoderSpec:
        return self.graph.spec

    @contextlib.contextmanager
    def __call__(self, length: int) -> Iterator[Model]:
        yield FloatModel(Reference(self.graph, self.read, context=length))


def _kept(read: Reader) -> Reader:
    whole: dict[str, Array] = {}

    def rows(name: str, start: int, stop: int | None) -> Array:
        if name not in whole:
            whole[name] = read(name, 0, None)
        return whole[name][start:stop]

    return rows


@contextlib.contextmanager
def opened(path: Path, runtime: str) -> Iterator[tuple[Opener, str]]:
    """Another model by its path, and what it is called: a bundle on a runtime, or a checkpoint in float32."""
    if (path / bundles.MANIFEST).is_file():
        bundle = bundles.open_bundle(path)
        yield FromBundle(bundle, runtime), bundle.manifest.name
        return
    with contextlib.closing(open_checkpoint(path)) as checkpoint:
        model = describe(checkpoint)
        yield FromWeights(graphs.build(model.spec), parity.source_reader(model.weights)), "source"
