"""`dsedge inspect`: what is in a bundle, and what running it takes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

import edge
from edge import store
from edge.bundle import TOKENIZER, Bundle
from edge.commands import answer, terminal
from edge.commands.complete import BundleArgument, KvDtypeOption
from edge.commands.quality import print_quality
from edge.errors import BundleError
from edge.kv import plan_layout, row_bytes
from edge.options import Sampling
from edge.pipeline import DEFAULT_CONTEXT
from edge.quality import QualityReport
from edge.tokenizer import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspect:
    """Show the sizes, spec, graphs and memory need of a bundle."""

    model: BundleArgument
    kv_dtype: KvDtypeOption = "auto"
    json: Annotated[bool, typer.Option("--json", help="One line of JSON instead of tables.")] = False

    def execute(self) -> int:
        report = describe(edge.open_bundle(store.resolve(self.model)), self.kv_dtype)
        if self.json:
            terminal.print_json(report)
        else:
            _print(report)
        return 0


def describe(bundle: Bundle, kv_dtype: str = "auto") -> dict[str, Any]:
    """The figures of a bundle. Sizes are bytes; `memory` estimates what running it with `context` tokens keeps."""
    manifest, spec = bundle.manifest, bundle.spec
    tensors = _tensors(bundle)
    weights = sum(row["bytes"] for row in tensors)
    parameters = sum(row["parameters"] for row in tensors)
    context = min(spec.context, DEFAULT_CONTEXT)
    dtype, token, cache = _kv_bytes(bundle, context, kv_dtype)
    return {
        "name": manifest.name,
        "path": str(bundle.path),
        "bytes": sum(file.size for file in manifest.files.values()),
        "parameters": parameters,
        "bits_per_weight": 8 * weights / parameters,
        "tensors": tensors,
        "recipe": manifest.recipe,
        "spec": spec.to_json(),
        "graphs": {name: asdict(graph) for name, graph in manifest.graphs.items()},
        "ends": _ends(bundle),
        "context": spec.context,
        "kv_dtype": dtype,
        "kv_bytes_per_token": token,
        "memory": {"context": context, "weights": weights, "kv": cache, "total": weights + cache},
        "sampling": manifest.sampling,
        "origin": asdict(manifest.origin) if manifest.origin else None,
        "artefacts": {name: asdict(artefact) for name, artefact in manifest.artefacts.items()},
        "quality": manifest.quality.to_json(),
        "toolchain": manifest.toolchain,
        "files": {name: file.size for name, file in manifest.files.items()},
    }


def _ends(bundle: Bundle) -> list[dict[str, Any]]:
    """A row for each token that ends an answer: its id, its spelling, and where the export found it."""
    info = bundle.manifest.tokenizer
    tokenizer = read_json(bundle.read_text(TOKENIZER) or "")
    return [
        {"id": token, "token": tokenizer.id_to_token(token), "found": list(info.eos_found.get(str(token), ()))}
        for token in info.eos
    ]


def _tensors(bundle: Bundle) -> list[dict[str, Any]]:
    """A row for each kind of tensor (`attn.q` of all layers) and scheme."""
    rows: dict[tuple[str, str], list[int]] = {}
    for name, runs in bundle.weights.runs.items():
        for run in runs:
            row = rows.setdefault((_kind(name), run.scheme), [0, 0, 0])
            for index, value in enumerate((1, bundle.weights.count(run.name), bundle.weights.size(run.name))):
                row[index] += value
    return [
        {
            "kind": kind,
            "scheme": scheme,
            "count": count,
            "parameters": parameters,
            "bytes": size,
            "bits_per_weight": 8 * size / parameters,
        }
        for (kind, scheme), (count, parameters, size) in rows.items()
    ]


def _kind(name: str) -> str:
    """`layers.3.attn.q` → `attn.q`."""
    return name.split(".", 2)[2] if name.startswith("layers.") else name


def _kv_bytes(bundle: Bundle, context: int, kv_dtype: str) -> tuple[str, int, int]:
    """How keys and values are kept ("auto": as the ONNX graphs do), and their bytes for a token and for a context."""
    spec = bundle.spec
    dtype = bundle.manifest.kv.get("dtype", "float32")
    if dtype not in ("float32", "float16"):
        raise BundleError(f"{bundle.path}: its KV is of the type {dtype!r}; known are float16, float32")
    dtype = dtype if kv_dtype == "auto" else kv_dtype
    rings, rows = plan_layout(spec, context).rings, [row_bytes(kv, dtype) for kv in spec.kv_groups]
    groups = spec.layer_groups
    return dtype, sum(rows[group] for group in groups), sum(rows[group] * rings[group].slots for group in groups)


def _end_line(row: Mapping[str, Any]) -> str:
    """`32007 <|end|> (chat template)`."""
    return f"{row['id']} {row['token']}" + (f" ({', '.join(row['found'])})" if row["found"] else "")


def _precision(precision: Mapping[str, str]) -> str:
    """`210 int8, 1 int16`."""
    return ", ".join(f"{count} {kind}" for kind, count in Counter(precision.values()).most_common())


def _attention(spec: Mapping[str, Any]) -> str:
    """`9 heads of 64 over 3 kv heads, window 512`."""
    window = f", window {spec['window']}" if spec["window"] else ""
    return f"{spec['heads']} heads of {spec['head_dim']} over {spec['kv_heads']} kv heads{window}"


def _print(report: dict[str, Any]) -> None:
    spec, memory = report["spec"], report["memory"]
    lines = {
        "name": report["name"],
        "path": report["path"],
        "size": terminal.megabytes(report["bytes"]),
        "weights": f"{report['parameters'] / 1e6:.1f} M at {report['bits_per_weight']:.2f} bits",
        "recipe": report["recipe"].get("name", "none"),
        "family": f"{spec['family']}, {len(spec['layers'])} layers of width {spec['hidden_size']}",
        "attention": "; ".join(dict.fromkeys(_attention(layer["attention"]) for layer in spec["layers"])),
        "vocabulary": f"{spec['vocab_size']}{', tied head' if spec['tied_head'] else ''}",
        "context": f"{report['context']} tokens, "
        f"{report['kv_bytes_per_token']} bytes of KV a token in {report['kv_dtype']}",
        "turn ends": "; ".join(_end_line(row) for row in report["ends"])
        or "none known: answers go on until their limit",
        "sampling": answer.describe_sampling(Sampling(**report["sampling"])),
        "memory": f"{terminal.megabytes(memory['total'])} at {memory['context']} tokens "
        f"(weights {terminal.megabytes(memory['weights'])}, KV {terminal.megabytes(memory['kv'])})",
    }
    for key, value in lines.items():
        terminal.say(f"{key + ':':12}{terminal.visible(str(value))}")
    terminal.say()
    rows = [
        (row["kind"], row["scheme"], row["count"], row["parameters"], row["bytes"], f"{row['bits_per_weight']:.2f}")
        for row in report["tensors"]
    ]
    terminal.print_table(("tensors", "scheme", "count", "parameters", "bytes", "bits/weight"), rows, sys.stdout)
    terminal.say()
    graphs = [
        (
            name,
            graph["file"],
            graph["kind"],
            _precision(graph["precision"]),
            f"{len(graph['inputs'])}/{len(graph['outputs'])}",
        )
        for name, graph in report["graphs"].items()
    ]
    terminal.print_table(("graph", "file", "kind", "activations of its linears", "in/out"), graphs, sys.stdout)
    terminal.say()
    print_quality(QualityReport.from_json(report["quality"]))
