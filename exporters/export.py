"""The export: describe → choose → check → write → emit → compare → publish, all stages in one readable function."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import edge
from edge import bundle as bundles
from edge import graph as graphs
from edge import texts
from edge.bundle import Bundle, FileInfo, Manifest, TokenizerInfo
from edge.chat import check_templates
from edge.errors import CheckpointError, found_in
from edge.files import remove_tree
from edge.graph import Graph
from edge.kv import row_bytes
from edge.quality import QualityReport
from edge.runtime import automatic
from edge.sums import sha256
from edge.tokenizer import build_tokenizer
from exporters import calibration, equalization, evaluation, gate, native_precision, parity, quality, targets, work
from exporters.architectures import Model, describe
from exporters.bundle_folder import BundleFolder
from exporters.calibration import Samples, bits, calibrator
from exporters.calibration.text import Calibration
from exporters.checkpoint import Checkpoint, TokenizerFiles
from exporters.checkpoint.added_tokens import fit_rows
from exporters.checkpoint.open import open_checkpoint
from exporters.encoding import Encoded, Encoding
from exporters.origin import find_origin
from exporters.payload_writer import Plan
from exporters.quant import recipe as recipes
from exporters.quant.recipe import Recipe
from exporters.report import texts as held_out
from exporters.targets import Asked

if TYPE_CHECKING:
    from typing import Unpack

    from edge.exporting import ExportOptions

Progress = Callable[[str, float], None]
_TOOLS = ("numpy", "tokenizers")


@dataclass(frozen=True, slots=True)
class _Described:
    """A checkpoint understood, and everything that is decided before its weights are read.

    `draft` is the manifest without graphs, artefacts, files, origin and quality, which are not there yet.
    """

    model: Model
    graph: Graph
    recipe: Recipe
    plans: Mapping[str, Plan]
    encoding: Encoding
    samples: Samples | None
    files: TokenizerFiles
    targets: tuple[str, ...]
    asked: Asked
    notes: tuple[str, ...]
    draft: Manifest


def export(source: str | Path, out: str | Path, **options: Unpack[ExportOptions]) -> Bundle:
    """Turn a checkpoint into the bundle `out`; see `edge.export` for the options and errors."""
    report: Progress = options.get("progress") or (lambda stage, share: None)
    wanted = options.get("gate")
    conditions = () if wanted is None else gate.parse(wanted)
    thorough = gate.mode(conditions, options.get("report"))
    if thorough == "full":
        automatic()  # without a runtime there is nothing to measure, which is better known before hours of work
    checkpoint = open_checkpoint(source)
    try:
        with BundleFolder(Path(out)) as folder:
            report("describe", 0.0)
            found = _describe(checkpoint, options.get("name") or folder.destination.stem, options)
            resumable = work.place(folder.destination) if options.get("resume") else None
            calibrated = _read_samples(found, report)
            found = _equalize(_widen(found, options.get("bits"), calibrated, report))
            encoded = _write_weights(checkpoint, found, calibrated, folder.path, resumable, report)
            _write_texts(folder.path, found.files)
            recipe, sums = {**found.draft.recipe, **encoded.told}, _sums(folder.path, bundles.TOKENIZER)
            draft = Bundle(folder.path, replace(found.draft, recipe=recipe, files=sums))
            report("reference", 0.0)
            reference = parity.Parity(draft, found.model.weights) if parity.affordable(draft) else None
            report("reference", 1.0)
            emitted = _emit(found, draft, reference, report)
            manifest = _complete(found, draft, reference, emitted)
            notes = [*found.files.notes, *found.notes, *quality.weight_notes(found.model, found.plans, encoded.zeros)]
            notes += [note for item in emitted for note in item.notes]
            report("compare", 0.0)
            made = Bundle(folder.path, manifest)
            judged = quality.build(made, found.plans, None if reference is None else reference.report(made), notes)
            report("compare", 1.0)
            if thorough == "full":
                judged = evaluation.extend(
                    judged, made, found.model.weights, lambda stage, share, _=None: report(stage, share)
                )
            gate.check(conditions, judged, folder.destination, manifest.name)
            _write_manifest(folder.path, replace(manifest, origin=find_origin(checkpoint)), judged)
            report("publish", 0.0)
            published = folder.commit()
            if resumable is not None:
                remove_tree(resumable)
            report("publish", 1.0)
    finally:
        checkpoint.close()
    return bundles.open_bundle(published)


def _complete(
    found: _Described, draft: Bundle, reference: parity.Parity | None, emitted: Sequence[targets.Emitted]
) -> Manifest:
    """The draft's manifest with what targets wrote, and how precisely the native engine is to compute."""
    artefacts = dict(zip(found.targets, (item.artefact for item in emitted), strict=True))
    return replace(
        draft.manifest,
        graphs={name: info for item in emitted for name, info in item.graphs.items()},
        artefacts={"payload": parity.PAYLOAD, **artefacts},
        precision=native_precision.choose(draft, reference, found.recipe.activation_kl),
        minimum_os={system: version for item in emitted for system, version in item.minimum_os.items()},
    )


def _write_weights(
    checkpoint: Checkpoint, found: _Described, calibrated: Calibration | None, folder: Path,
    resumable: Path | None, report: Progress,
) -> Encoded:  # fmt: skip
    """The payload, on the text that it needs; what it was made of, for the manifest."""
    told = {"calibration": calibrated.to_json()} if calibrated else {}
    with work.folder(folder, resumable, {**_key(checkpoint, found), **told}) as results:
        samples = calibrated.samples if calibrated else ()
        encoded = found.encoding.write(folder / bundles.WEIGHTS, samples, results, report)
    return replace(encoded, told={**told, **encoded.told})


def _read_samples(found: _Described, report: Progress) -> Calibration | None:
    """The text to calibrate on, which a model that writes its own does here."""
    if found.samples is None:
        return None
    report("read text", 0.0)
    samples = found.samples(lambda share: report("read text", share))
    report("read text", 1.0)
    return samples


def _key(checkpoint: Checkpoint, found: _Described) -> dict[str, Any]:
    """What the weights depend on, beside the text: results of another key are of no use."""
    files = {str(path): [path.stat().st_size, path.stat().st_mtime_ns] for path in checkpoint.files}
    return {"draft": found.draft.to_json(), "effort": asdict(found.encoding.effort), "files": files}


def _describe(checkpoint: Checkpoint, name: str, options: ExportOptions) -> _Described:
    """Everything that can be refused without reading a weight is refused here."""
    model = describe(checkpoint)
    graph = graphs.build(model.spec)
    named, asked = options.get("effort"), options.get("recipe")
    effort = calibration.find(calibration.DEFAULT_EFFORT if named is None else named)
    limit = options.get("bits")
    shipped = recipes.pick(graph.parameters) if limit is None else bits.RECIPE
    recipe = recipes.load(shipped if asked is None else asked, effort.method)
    plans = _plan(graph, model, recipe)
    encoding = Encoding(graph, plans, effort)
    encoding.check()
    wishes = _asked(options)
    wanted, notes = targets.choose(graph, options.get("targets"), wishes)
    files = fit_rows(checkpoint.tokenizer(), model.spec.vocab_size, checkpoint.path)
    measured = (texts.read(parity.TEXT), *held_out.measured())
    if limit is not None:
        bits.check(graph, plans, limit)
    effort = replace(effort, weighs=limit is not None)
    samples = calibration.choose(options.get("calibration"), model, plans, files, effort=effort, measured=measured)
    enders = {str(token): places for token, places in files.enders.items()}
    draft = Manifest(
        name=name,
        spec=model.spec,
        schemes=_schemes(plans),
        recipe=recipe.to_json(),
        tokenizer=TokenizerInfo(files.bos, files.eos, dict(files.special), files.add_bos, enders),
        graphs={},
        kv=_describe_kv(model),
        toolchain=_toolchain(wanted, encoding),
        sampling=checkpoint.sampling(),
    )
    _check_opening(checkpoint, draft, files)
    return _Described(model, graph, recipe, plans, encoding, samples, files, wanted, wishes, notes, draft)


def _asked(options: ExportOptions) -> Asked:
    contexts = options.get("contexts")
    return Asked(None if contexts is None else tuple(contexts), options.get("minimum_os"))


def _plan(graph: Graph, model: Model, recipe: Recipe) -> dict[str, Plan]:
    sources = ((weight, model.weights[weight.name]) for weight in graph.weights)
    chosen = {weight.name: Plan(source, recipe.choose(weight, source)) for weight, source in sources}
    return calibrator.settle(graph, chosen)


def _schemes(plans: Mapping[str, Plan]) -> dict[str, str]:
    layouts = {name: str(plan.choice.layout) for name, plan in plans.items()}
    return {name: layout for name, layout in layouts.items() if layout != "float32"}


def _widen(found: _Described, limit: float | None, calibrated: Calibration | None, report: Progress) -> _Described:
    """With a limit on bits, the costliest parts in eight of them."""
    if limit is None:
        return found
    assert calibrated is not None
    report("weigh heads", 0.0)
    recipe = bits.widen(
        found.graph, found.plans, found.recipe, calibrated.samples[0], limit=limit,
        progress=lambda share: report("weigh heads", share),
    )  # fmt: skip
    plans = _plan(found.graph, found.model, recipe)
    draft = replace(found.draft, schemes=_schemes(plans), recipe=recipe.to_json())
    return replace(found, recipe=recipe, plans=plans, encoding=replace(found.encoding, plans=plans), draft=draft)


def _equalize(found: _Described) -> _Described:
    """With sources whose keys have even channels, where the effort asks for it."""
    if not found.encoding.effort.equalizes:
        return found
    exponents = equalization.find(found.graph, found.plans)
    if not exponents:
        return found
    plans = equalization.apply(found.plans, equalization.factors(found.graph, exponents))
    recipe = {**found.draft.recipe, equalization.KEY: equalization.to_json(exponents)}
    encoding, draft = replace(found.encoding, plans=plans), replace(found.draft, recipe=recipe)
    return replace(found, plans=plans, encoding=encoding, draft=draft)


def _check_opening(checkpoint: Checkpoint, draft: Manifest, files: TokenizerFiles) -> None:
    """Raise CheckpointError for whatever would keep the bundle from being opened: it is known before hours of work."""
    with found_in(CheckpointError, checkpoint.path):
        Manifest.from_json(texts.parse_json(json.dumps(draft.to_json())))
        build_tokenizer(files.tokenizer, draft.tokenizer)
        check_templates(files.chat_template, files.chat_templates, draft.tokenizer.special)


def _toolchain(wanted: Sequence[str], encoding: Encoding) -> dict[str, str]:
    """The versions of the tools that make this bundle: what else is installed has no part in it."""
    tools = {*_TOOLS, *(tool for name in wanted for tool in targets.find(name).TOOLS)}
    if encoding.distills:
        tools.add("torch")
    found = {"dsedge": edge.__version__}
    for tool in sorted(tools):
        try:
            found[tool] = version(tool)
        except PackageNotFoundError:  # an ONNX graph is written without ONNX Runtime, and not run then
            continue
    return found


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


def _emit(found: _Described, draft: Bundle, reference: parity.Parity | None, report: Progress) -> list[targets.Emitted]:
    """Every target's files, written into the draft's folder."""
    largest = None if reference is None else reference.largest
    context = targets.Context(draft, reference, found.recipe.activation_kl, found.asked, largest)
    emitted = []
    for index, name in enumerate(found.targets):
        report("emit", index / len(found.targets))
        emitted.append(targets.find(name).emit(context))
    report("emit", 1.0)
    return emitted


def _sums(folder: Path, pattern: str = "*") -> dict[str, FileInfo]:
    """Size and SHA-256 of the files so far whose name fits the pattern, by relative path."""
    found = sorted(path for path in folder.rglob(pattern) if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): FileInfo(path.stat().st_size, sha256(path)) for path in found}


def _write_manifest(folder: Path, manifest: Manifest, judged: QualityReport) -> None:
    (folder / "report").mkdir()
    quality.write(judged, folder / "report" / "quality.json", manifest.name)
    bundles.write_manifest(folder, replace(manifest, quality=judged.summary(), files=_sums(folder)))
