"""The export: describe → build → choose → write → emit → check → publish, all stages in one readable function."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edge import bundle as bundles
from edge import graph as graphs
from edge.bundle import Bundle, FileInfo, GraphInfo, Manifest, TokenizerInfo
from edge.kv import row_bytes
from edge.sums import sha256
from edge.weights import Weights
from exporters import parity, precision
from exporters.architectures import Model, describe
from exporters.bundle_folder import BundleFolder
from exporters.checkpoint import TokenizerFiles
from exporters.checkpoint.added_tokens import fit_rows
from exporters.checkpoint.open import open_checkpoint
from exporters.emit import onnx
from exporters.payload_writer import Plan, write_weights
from exporters.quant import recipe as recipes
from exporters.quant.recipe import Choice, Recipe

Progress = Callable[[str, float], None]
_TOOLS = ("numpy", "onnx", "onnxruntime", "tokenizers")


def export(
    source: str | Path,
    out: str | Path,
    *,
    recipe: str | Path | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> Bundle:
    """Turn a checkpoint into the bundle `out`; see `edge.export` for the arguments and errors."""
    report = progress or (lambda stage, share: None)
    checkpoint = open_checkpoint(source)
    try:
        with BundleFolder(Path(out)) as folder:
            report("describe", 0.0)
            model = describe(checkpoint)
            graph = graphs.build(model.spec)
            chosen = recipes.load(recipe or recipes.pick(graph.parameters))
            choices = {weight.name: chosen.choose(weight, model.weights[weight.name]) for weight in graph.weights}
            files = fit_rows(checkpoint.tokenizer(), model.spec.vocab_size, checkpoint.path)
            plans = {name: Plan(model.weights[name], choice) for name, choice in choices.items()}
            zeros = write_weights(folder.path / bundles.WEIGHTS, graph, plans, lambda share: report("quantize", share))
            report("emit", 0.0)
            schemes = {key: str(choice.layout) for key, choice in choices.items() if str(choice.layout) != "float32"}
            weights = Weights(folder.path / bundles.WEIGHTS, graph.weights, schemes)
            exact = onnx.emit(graph, weights, folder.path / "decoder-exact.onnx", precision=lambda op: "float")
            _write_texts(folder.path, files)
            manifest = _describe(name or folder.target.stem, model, schemes, chosen, files)
            draft = Bundle(
                folder.path, replace(manifest, graphs={"exact": exact}, files=_sums(folder.path, bundles.TOKENIZER))
            )
            decoder, figures = _emit_decoder(draft, model, chosen.activation_kl, report)
            table = {"decoder": decoder, "exact": exact}
            notes = [*files.notes, *_notes(choices, model, zeros)]
            _write_manifest(
                folder.path, replace(manifest, graphs=table, quality=_quality(draft, choices, notes, figures))
            )
            report("publish", 0.0)
            target = folder.commit()
            report("publish", 1.0)
    finally:
        checkpoint.close()
    return bundles.open_bundle(target)


def _describe(name: str, model: Model, schemes: Mapping[str, str], recipe: Recipe, files: TokenizerFiles) -> Manifest:
    """The manifest without graphs, files and quality, which are not there yet."""
    found = {str(token): places for token, places in files.enders.items()}
    return Manifest(
        name=name,
        spec=model.spec,
        schemes=schemes,
        recipe=recipe.to_json(),
        tokenizer=TokenizerInfo(files.bos, files.eos, dict(files.special), files.add_bos, found),
        graphs={},
        kv=_describe_kv(model),
        toolchain={tool: version(tool) for tool in _TOOLS},
    )


def _describe_kv(model: Model) -> dict[str, Any]:
    """What the host must keep: keys and values of each layer, [kv_heads, slots, dim] each, in a ring a group."""
    spec = model.spec
    return {
        "dtype": "float32",
        "groups": [asdict(kv) for kv in spec.kv_groups],
        "layers": list(spec.layer_groups),
        "bytes_per_token": sum(row_bytes(spec.kv_groups[group], "float32") for group in spec.layer_groups),
    }


def _write_texts(folder: Path, files: TokenizerFiles) -> None:
    (folder / bundles.TOKENIZER).write_text(files.tokenizer, encoding="utf-8", newline="\n")
    if files.chat_template is not None:
        (folder / bundles.TEMPLATE).write_text(files.chat_template, encoding="utf-8", newline="\n")
    for name, template in files.chat_templates.items():
        (folder / bundles.TEMPLATES).mkdir(exist_ok=True)
        (folder / bundles.TEMPLATES / f"{name}.jinja").write_text(template, encoding="utf-8", newline="\n")


def _sums(folder: Path, pattern: str = "*") -> dict[str, FileInfo]:
    """Size and SHA-256 of the files so far whose name fits the pattern, by relative path."""
    found = sorted(path for path in folder.rglob(pattern) if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): FileInfo(path.stat().st_size, sha256(path)) for path in found}


def _emit_decoder(
    draft: Bundle, model: Model, limit: float | None, report: Progress
) -> tuple[GraphInfo, dict[str, Any] | None]:
    """Write decoder.onnx, with the parity figures of a model that is small enough for a check."""
    if not parity.affordable(draft):
        return onnx.emit(draft.graph, draft.weights, draft.path / "decoder.onnx", precision=precision.refined(0)), None
    checked = parity.Parity(draft)
    report("check", 0.3)
    figures: dict[str, Any] = {"tokens": len(checked.ids), "exact": asdict(checked.exact())}
    report("check", 0.5)
    figures["source"] = asdict(checked.source(model.weights))
    report("check", 0.7)
    info, figures["decoder"] = precision.emit_decoder(draft, checked, limit)
    report("check", 1.0)
    return info, figures


def _notes(choices: Mapping[str, Choice], model: Model, zeros: Sequence[str]) -> list[str]:
    """What there is to say about weights, of their sources and then of their schemes; once for all that share it."""
    told: dict[str, list[str]] = {}
    for name in choices:
        told.setdefault(model.weights[name].note, []).append(name)
    for name, choice in choices.items():
        told.setdefault(choice.note, []).append(name)
    if zeros:
        told["all zeros in the source: the checkpoint may be damaged"] = list(zeros)
    told.pop("", None)
    more = {note: f" and {len(names) - 1} more" if len(names) > 1 else "" for note, names in told.items()}
    return [*model.notes, *(f"{names[0]}{more[note]}: {note}" for note, names in told.items())]


def _quality(
    draft: Bundle, choices: Mapping[str, Choice], notes: list[str], figures: dict[str, Any] | None
) -> dict[str, Any]:
    """The quality report: how weights were stored, and the parity figures where there are any."""
    counted: dict[str, dict[str, int]] = {}
    for name, runs in draft.weights.runs.items():
        for run, method in zip(runs, choices[name].methods, strict=True):
            entry = counted.setdefault(run.scheme, {"tensors": 0, "carried": 0, "parameters": 0, "bytes": 0})
            entry["tensors"] += 1
            entry["carried"] += method == "carry"
            entry["parameters"] += draft.weights.count(run.name)
            entry["bytes"] += draft.weights.size(run.name)
    if figures is None:
        notes = [*notes, "parity was not checked: above a billion parameters run `dsedge verify`"]
    return {"schemes": counted, "notes": notes, "parity": figures}


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    (folder / "report").mkdir()
    _write_json(folder / "report" / "quality.json", dict(manifest.quality))
    bundles.write_manifest(folder, replace(manifest, files=_sums(folder)))


def _write_json(path: Path, data: Any) -> None:
    path.write_text(
        json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n"
    )
