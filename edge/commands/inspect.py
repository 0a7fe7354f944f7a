"""`dsedge inspect`: what is in a bundle, and what running it takes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, cast

import typer

import edge
from edge import store
from edge.bundle import TOKENIZER, Bundle
from edge.commands import answer, terminal
from edge.commands.complete import BundleArgument, KvDtypeOption, RuntimeOption
from edge.commands.quality import print_quality
from edge.commands.wrapping import columns, fill
from edge.errors import BundleError, DeviceError, UnsupportedError, UserError, found_in
from edge.kv import KvDtype, plan_layout, row_bytes
from edge.options import RuntimeOptions, Sampling
from edge.quality import QualityReport
from edge.runtime import kept_kv
from edge.sizing import DEFAULT_CONTEXT, context_of
from edge.tokenizer import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspect:
    """Show the sizes, spec, graphs and memory need of a bundle."""

    model: BundleArgument
    runtime: RuntimeOption = "auto"
    kv_dtype: KvDtypeOption = "auto"
    full: Annotated[
        bool, typer.Option("--full", help="Also each kind of tensor, graphs, files, spec and the quality report.")
    ] = False
    json: Annotated[bool, typer.Option("--json", help="One line of JSON instead of lines and tables.")] = False

    def execute(self) -> int:
        options = RuntimeOptions(runtime=self.runtime, kv_dtype=cast(KvDtype, self.kv_dtype))
        bundle = edge.open_bundle(store.resolve(self.model))
        report = describe(bundle, options)
        if self.json:
            terminal.print_json({**report, **(details(bundle) if self.full else {})})
            return 0
        _print(report)
        if self.full:
            _print_details(details(bundle))
        return 0


def describe(bundle: Bundle, options: RuntimeOptions | None = None) -> dict[str, Any]:
    """The figures of a bundle, under keys that stay. Sizes are bytes; `memory` estimates what running it with `context`
    tokens keeps, and `auto` is the context that free memory holds now (None: not the shortest one); `kv` tells how the
    backend that the options mean keeps them: `dtypes` counts layers."""
    manifest, spec = bundle.manifest, bundle.spec
    tensors = _tensors(bundle)
    weights = sum(row["bytes"] for row in tensors)
    parameters = sum(row["parameters"] for row in tensors)
    context = min(spec.context, DEFAULT_CONTEXT)
    kv = _kv(bundle, context, options or RuntimeOptions())
    quality = manifest.quality.overall
    return {
        "name": manifest.name,
        "path": str(bundle.path),
        "bytes": sum(file.size for file in manifest.files.values()),
        "parameters": parameters,
        "bits_per_weight": 8 * weights / parameters,
        "recipe": manifest.recipe.get("name"),
        "family": spec.family,
        "layers": len(spec.layers),
        "hidden_size": spec.hidden_size,
        "attention": list(dict.fromkeys(_attention(layer["attention"]) for layer in spec.to_json()["layers"])),
        "vocab_size": spec.vocab_size,
        "tied_head": spec.tied_head,
        "ends": _ends(bundle),
        "context": spec.context,
        "kv": kv,
        "memory": {
            "context": context,
            "weights": weights,
            "kv": kv["bytes"],
            "total": weights + kv["bytes"],
            "auto": _auto(bundle, options or RuntimeOptions()),
        },
        "sampling": manifest.sampling,
        "mean_kl": quality.mean_kl if quality else None,
        "top1": quality.top1 if quality else None,
        "origin": asdict(manifest.origin) if manifest.origin else None,
    }


def _auto(bundle: Bundle, options: RuntimeOptions) -> int | None:
    try:
        return context_of(bundle, replace(options, context="auto"))
    except UserError:  # too little memory, or no backend here
        return None


def details(bundle: Bundle) -> dict[str, Any]:
    """All else that is known of a bundle; its keys follow the manifest's format."""
    manifest = bundle.manifest
    return {
        "tensors": _tensors(bundle),
        "rules": manifest.recipe,
        "spec": bundle.spec.to_json(),
        "graphs": {name: asdict(graph) for name, graph in manifest.graphs.items()},
        "artefacts": {name: asdict(artefact) for name, artefact in manifest.artefacts.items()},
        "quality": manifest.quality.to_json(),
        "toolchain": manifest.toolchain,
        "files": {name: file.size for name, file in manifest.files.items()},
    }


def _ends(bundle: Bundle) -> list[dict[str, Any]]:
    """A row for each token that ends an answer: its id, its spelling, and where the export found it."""
    info = bundle.manifest.tokenizer
    with found_in(BundleError, bundle.path):
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


def _kv(bundle: Bundle, context: int, options: RuntimeOptions) -> dict[str, Any]:
    """How keys and values are kept, and their bytes for a token and for a context.

    `runtime` is None where no backend here can run the bundle: then as its graphs keep them.
    """
    spec, graphs = bundle.spec, bundle.manifest.kv.get("dtype", "float32")
    if graphs not in ("float32", "float16"):
        raise BundleError(f"{bundle.path}: its KV is of the type {graphs!r}; known are float16, float32")
    name: str | None
    try:
        name, dtypes = kept_kv(bundle, options)
    except (DeviceError, UnsupportedError):
        if options != RuntimeOptions():
            raise
        name, dtypes = None, [graphs] * len(spec.layers)
    rings = plan_layout(spec, context).rings
    rows = [row_bytes(spec.kv_groups[group], dtype) for group, dtype in zip(spec.layer_groups, dtypes, strict=True)]
    slots = [rings[group].slots for group in spec.layer_groups]
    return {
        "runtime": name,
        "dtypes": dict(Counter(dtypes)),
        "bytes_per_token": sum(rows),
        "bytes": sum(row * count for row, count in zip(rows, slots, strict=True)),
    }


def _end_line(row: Mapping[str, Any]) -> str:
    """`32007 <|end|> (chat template)`."""
    return f"{row['id']} {row['token']}" + (f" ({', '.join(row['found'])})" if row["found"] else "")


def _precision(precision: Mapping[str, str]) -> str:
    """`210 int8, 1 int16`."""
    return ", ".join(f"{count} {kind}" for kind, count in Counter(precision.values()).most_common())


def _attention(spec: Mapping[str, Any]) -> str:
    """`9 heads of 64 over 3 kv heads, window 512`, or `16 heads over a latent of 512`."""
    if spec["kind"] == "mla":
        return f"{spec['heads']} heads over a latent of {spec['latent_dim']}"
    window = f", window {spec['window']}" if spec["window"] else ""
    return f"{spec['heads']} heads of {spec['head_dim']} over {spec['kv_heads']} kv heads{window}"


def _kept(kv: Mapping[str, Any]) -> str:
    """`23040 bytes of KV a token in float16 (28 layers), float32 (2 layers) on native`."""
    several = len(kv["dtypes"]) > 1
    dtypes = ", ".join(f"{dtype} ({count} layers)" if several else dtype for dtype, count in kv["dtypes"].items())
    return f"{kv['bytes_per_token']} bytes of KV a token in {dtypes}" + (
        f" on {kv['runtime']}" if kv["runtime"] else ""
    )


def _print(report: dict[str, Any]) -> None:
    memory = report["memory"]
    told = report["mean_kl"] is not None
    lines = {
        "name": report["name"],
        "path": report["path"],
        "size": terminal.megabytes(report["bytes"]),
        "weights": f"{report['parameters'] / 1e6:.1f} M at {report['bits_per_weight']:.2f} bits",
        "recipe": report["recipe"] or "none",
        "quality": f"mean KL {report['mean_kl']:.4f}, same top token {report['top1']:.1%}" if told else "not compared",
        "family": f"{report['family']}, {report['layers']} layers of width {report['hidden_size']}",
        "attention": "; ".join(report["attention"]),
        "vocabulary": f"{report['vocab_size']}{', tied head' if report['tied_head'] else ''}",
        "context": f"{report['context']} tokens, {_kept(report['kv'])}",
        "turn ends": "; ".join(_end_line(row) for row in report["ends"])
        or "none known: answers go on until their limit",
        "sampling": answer.describe_sampling(Sampling(**report["sampling"])),
        "memory": f"{terminal.megabytes(memory['total'])} at {memory['context']} tokens "
        f"(weights {terminal.megabytes(memory['weights'])}, KV {terminal.megabytes(memory['kv'])}); "
        f"--context auto: {'too little is free' if memory['auto'] is None else str(memory['auto']) + ' tokens here'}",
    }
    for key, value in lines.items():
        text = terminal.visible(f"{key + ':':12}{value}")
        terminal.say(text if key == "path" else fill(text, columns(sys.stdout), indent=12))


def _print_details(report: dict[str, Any]) -> None:
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
