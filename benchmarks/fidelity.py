"""How far quantized models are from their source: KL divergence, agreement and perplexity on WikiText-2.

    python -m benchmarks.fidelity
    python -m benchmarks.fidelity --source SOURCE BUNDLE… --ortgenai DIR --llama FILE.gguf --llama-python PYTHON

The source's float32 weights run in the exporter's reference interpreter. The text is the beginning of the WikiText-2
test set with its tokenization marks undone, encoded without control tokens: 8 chunks of 512 ids (4 for vocabularies
over 200,000; a chunk starts with a BOS where the model's tokenizer adds one). KL(source ‖ model) and agreement are over
positions from 64 on, perplexity over all of a chunk. Each bundle is run by its exact ONNX graph, which
shows what the weights lost, by the graph that ONNX Runtime uses, and by the native engine where it was built, with its
own cache and in int8. A second table sets the native engine against the reference interpreter on the bundle's own
weights, so that only the arithmetic differs.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import models, peers, tables, wikitext
from edge import graph as graphs
from edge.bundle import Bundle, open_bundle
from edge.kv import KvDtype
from edge.runtime import support
from edge.tokenizer import open_tokenizer
from exporters import parity
from exporters.architectures import describe
from exporters.checkpoint import Checkpoint
from exporters.checkpoint.open import open_checkpoint
from exporters.distance import Distance, Logits
from exporters.reference import Reader, Reference

TEXT = Path(__file__).parent / "wikitext2-test.txt"
LENGTH = 512
_HEAD = ("", "MB", "mean KL", "99% KL", "top-1 same", "perplexity")

Model = Callable[[list[int]], Logits]  # ids → logits of each, [ids, vocab]


def chunks(bundle: Bundle) -> list[list[int]]:
    """The text's chunks of ids for a model."""
    tokenizer = open_tokenizer(bundle)
    ids = tokenizer.encode(wikitext.read(TEXT))
    count = 4 if bundle.spec.vocab_size > 200_000 else 8
    if len(ids) < count * LENGTH:
        raise SystemExit(f"{TEXT.name} is {len(ids)} tokens for this model; {count * LENGTH} are needed")
    prefix = tokenizer.with_bos([])
    return [prefix + ids[i * LENGTH : (i + 1) * LENGTH - len(prefix)] for i in range(count)]


def main() -> int:
    options = _parser().parse_args()
    machine = tables.machine()
    paths: list[Path] = options.bundles or [
        models.default_bundle(recipe) for recipe in (models.DEFAULT_RECIPE, models.EQUAL_BITS)
    ]
    bundles = {path.stem: open_bundle(path) for path in paths}
    parts = chunks(next(iter(bundles.values())))
    compared: dict[str, tuple[int, Model]] = {}
    for name, bundle in bundles.items():
        for graph in ("exact", "decoder"):
            model = bundle_model(bundle, "onnx", exact=graph == "exact")
            compared[f"{name}, ONNX, {graph} graph"] = (_size(bundle, graph), model)
        if support("native").devices:
            size = _size(bundle, None)
            compared[f"{name}, native engine"] = (size, bundle_model(bundle, "native", exact=False))
            int8 = bundle_model(bundle, "native", exact=False, kv_dtype="int8")
            compared[f"{name}, native engine, int8 cache"] = (size, int8)
    checkpoint = open_checkpoint(options.source or models.default_source())
    with tempfile.TemporaryDirectory() as scratch, contextlib.closing(checkpoint):
        compared.update(_peers(options, parts, Path(scratch)))
        distances, own = measure(source_model(checkpoint), compared, parts)
    title = f"Against the source's float32 weights, {len(parts)} × {LENGTH} tokens (source perplexity {own:.2f})"
    rows = tuple(_row(name, compared[name][0], found) for name, found in distances.items())
    found = [tables.Table(title, _HEAD, rows), own_weights(bundles, compared, parts)]
    tables.show([found[0], replace(found[1], notes=(*found[1].notes, machine))], markdown=options.markdown)
    return 0


def own_weights(
    bundles: Mapping[str, Bundle], compared: Mapping[str, tuple[int, Model]], parts: list[list[int]]
) -> tables.Table:
    """The native engine's rows again, each against the float32 numbers that its bundle's weights stand for."""
    rows: list[tuple[str, ...]] = []
    for name, bundle in bundles.items():
        mine = {row: model for row, model in compared.items() if row.startswith(f"{name}, native")}
        if mine:
            distances, _ = measure(reference_model(bundle.graph, bundle.weights.read), mine, parts)
            rows += [_row(row, mine[row][0], found) for row, found in distances.items()]
    title = f"The native engine against its bundle's own weights in float32, {len(parts)} × {LENGTH} tokens"
    return tables.Table(title, _HEAD, tuple(rows), ("The bars are a mean KL of 0.004 and 96% of the same top-1.",))


def measure(
    source: Model, compared: Mapping[str, tuple[int, Model]], parts: list[list[int]]
) -> tuple[dict[str, Distance], float]:
    """The distance of each model from the source, and the source's own perplexity."""
    distances = {name: Distance() for name in compared}
    own = Distance()
    for number, ids in enumerate(parts, 1):
        print(f"chunk {number} of {len(parts)}", file=sys.stderr)
        expected = source(ids)
        own.add(expected, expected, ids)
        for name, (_, model) in compared.items():
            distances[name].add(expected, model(ids), ids)
    return distances, own.perplexity


def source_model(checkpoint: Checkpoint) -> Model:
    """The float32 weights of a checkpoint, in the reference interpreter."""
    model = describe(checkpoint)
    return reference_model(graphs.build(model.spec), parity.source_reader(model.weights))


def reference_model(graph: graphs.Graph, read: Reader) -> Model:
    # Some ropes depend on the context that is planned; the bundles are run with that of a chunk.
    reference = Reference(graph, read, context=LENGTH)

    def run(ids: list[int]) -> Logits:
        reference.reset()
        return reference.run(ids)

    return run


def bundle_model(bundle: Bundle, runtime: str, *, exact: bool, kv_dtype: KvDtype = "auto") -> Model:
    return lambda ids: parity.run_graph(bundle, ids, exact=exact, chunk=256, runtime=runtime, kv_dtype=kv_dtype)


def _size(bundle: Bundle, graph: str | None) -> int:
    """Bytes of the files that a device needs: weights, one graph or none, tokenizer, template."""
    others = {info.file for name, info in bundle.manifest.graphs.items() if name != graph}
    return sum(
        info.size
        for name, info in bundle.manifest.files.items()
        if name not in others and not name.startswith("report/")
    )


def _peers(
    options: argparse.Namespace, parts: list[list[int]], scratch: Path
) -> Iterator[tuple[str, tuple[int, Model]]]:
    """Rows of other engines' files for the same model."""
    if options.ortgenai:
        size = sum(file.stat().st_size for file in options.ortgenai.iterdir())
        yield f"ONNX Runtime GenAI: {options.ortgenai.name}", (size, peers.ortgenai_model(options.ortgenai))
    for number, path in enumerate(options.llama):
        out = scratch / f"{number}.npy"
        np.save(scratch / "ids.npy", np.asarray(parts))
        line = [
            options.llama_python,
            "-m",
            "benchmarks.workers.llama_logits",
            str(path.resolve()),
            str(scratch / "ids.npy"),
        ]
        models.output_of([*line, str(out)])
        yield f"llama.cpp: {path.name}", (path.stat().st_size, peers.recorded(out, parts))


def _row(name: str, size: int, found: Distance) -> tuple[str, ...]:
    figures = f"{found.mean_kl:.5f}", f"{found.p99_kl:.3f}", f"{found.top1:.1%}", f"{found.perplexity:.2f}"
    return name, f"{size / 1e6:.1f}", *figures


def _parser() -> argparse.ArgumentParser:
    parser = tables.parser(__doc__)
    parser.add_argument("bundles", metavar="BUNDLE", nargs="*", type=Path, help="bundles made from SOURCE")
    parser.add_argument("--source", type=Path, help="the checkpoint [the default model's]")
    parser.add_argument("--ortgenai", type=Path, help="a folder of ONNX Runtime GenAI's model builder")
    parser.add_argument("--llama", type=Path, action="append", default=[], help="a GGUF file; repeatable")
    parser.add_argument("--llama-python", default=sys.executable, help="the interpreter that has llama-cpp-python")
    return parser


if __name__ == "__main__":
    sys.exit(main())
