"""`dsedge export`: from a checkpoint to a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import edge
from edge import store, texts
from edge.bundle import Bundle
from edge.commands import terminal
from edge.commands.complete import recipe_names
from edge.commands.inspect import describe
from edge.commands.quality import note_quality, print_quality
from edge.commands.release import CATALOG, check_free, parse_variants, release
from edge.errors import OptionError
from edge.exporting import ExportOptions
from edge.paths import expanded


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Export a checkpoint to an int4 bundle.

    SOURCE is a folder with config.json and safetensors, a .safetensors or a .gguf file. With --variants, a release set
    is made instead: a bundle for each recipe, and a catalog.toml that `dsedge pull --catalog` understands.
    """

    source: Annotated[
        str | None, typer.Argument(metavar="SOURCE", help="A model folder, .safetensors or .gguf file.")
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="OUT.dsedge", help="The bundle's folder, or the release's.", parser=expanded
        ),
    ] = None
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Put the bundle into the local store under this name; or name the release."),
    ] = None
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="sub1b|7b|FILE", help="Rules for the schemes. [default: by size]", autocompletion=recipe_names
        ),
    ] = None
    targets: Annotated[
        str | None,
        typer.Option(
            metavar="onnx,coreml|none", help="What to make besides the payload. [default: onnx, where it can be made]"
        ),
    ] = None
    contexts: Annotated[
        str | None,
        typer.Option(metavar="512,2048", help="Context lengths of a Core ML package's functions."),
    ] = None
    minimum_os: Annotated[
        str | None, typer.Option(metavar="iOS18", help="The oldest system that a Core ML package must run on.")
    ] = None
    effort: Annotated[
        str | None,
        typer.Option(
            metavar="none|medium|high",
            help="none rounds to nearest: seconds; medium calibrates: minutes, and far closer to the source; high "
            "trains from there, with torch: longer, and closer still. [default: medium]",
        ),
    ] = None
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="self|FILE.txt|FILE.jsonl",
            help="What to calibrate on; self: what the model writes. [default: a built-in mix]",
        ),
    ] = None
    bits: Annotated[
        float | None,
        typer.Option(
            metavar="4.6", help="Bits a weight in all: the heads and matrices that need it get 8. [default: by recipe]"
        ),
    ] = None
    gate: Annotated[
        str | None,
        typer.Option(
            metavar="'kl<=0.12,code.top1>=0.8'", help="Publish only what reaches this; otherwise exit with 3."
        ),
    ] = None
    report: Annotated[
        str | None,
        typer.Option(
            metavar="quick|full",
            help="quick: 128 tokens; full: three texts, and head by head, minutes. [default: what --gate needs]",
        ),
    ] = None
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Keep finished work when interrupted, beside OUT, and go on from it next time."),
    ] = False
    variants: Annotated[
        list[str] | None,
        typer.Option(metavar="sub1b=SOURCE,7b=SOURCE", help="Export each source with that recipe; repeatable."),
    ] = None
    license: Annotated[
        str | None, typer.Option(metavar="TEXT", help="License to state in the release's catalogue.")
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Replace a bundle that is there; nothing but a whole bundle is replaced.")
    ] = False
    json: Annotated[bool, typer.Option("--json", help="The summary as one line of JSON.")] = False

    def execute(self) -> int:
        if self.variants:
            return self._release(self.variants)
        if self.source is None:
            raise OptionError("say what to export: a SOURCE, or --variants for a release set")
        if self.license is not None:
            raise OptionError("--license is for the catalogue that --variants writes; leave it out")
        target = self._target()
        check_free(target, force=self.force)
        targets = parse_targets(self.targets)
        with terminal.progress() as progress:
            bundle = edge.export(
                self.source, target, recipe=self.recipe, name=self.name, targets=targets, effort=self.effort,
                calibration=self.calibration, bits=self.bits, gate=self.gate, report=self.report, resume=self.resume,
                contexts=_contexts(self.contexts), minimum_os=self.minimum_os, progress=progress,
            )  # fmt: skip
        summary = describe(bundle)
        if self.json:
            terminal.print_json(summary)
        else:
            _print(summary, bundle)
        note_quality(bundle.manifest.quality)
        return 0

    def _release(self, variants: list[str]) -> int:
        if self.source is not None or self.recipe is not None:
            raise OptionError("--variants names sources and recipes itself; leave out SOURCE and --recipe")
        if self.resume:
            raise OptionError("--resume is for one SOURCE; leave it out with --variants")
        targets = parse_targets(self.targets)
        if self.out is None or self.out.suffix == store.SUFFIX:
            raise OptionError(f"-o names the release's folder, which holds bundles and does not end in {store.SUFFIX}")
        name = self.name or self.out.absolute().name
        named = parse_variants(variants)
        for recipe in named:
            check_free(self.out / f"{name}-{recipe}{store.SUFFIX}", force=self.force)
        terms = _checked(self.license)
        with terminal.progress() as progress:
            options: ExportOptions = {
                "targets": targets, "effort": self.effort, "calibration": self.calibration, "bits": self.bits,
                "gate": self.gate, "report": self.report, "contexts": _contexts(self.contexts),
                "minimum_os": self.minimum_os,
            }  # fmt: skip
            bundles = release(named, self.out, options, name=name, terms=terms, progress=progress)
        summaries = [describe(bundle) for bundle in bundles.values()]
        if self.json:
            terminal.print_json({"catalog": str(self.out / CATALOG), "bundles": summaries})
            return 0
        for summary, bundle in zip(summaries, bundles.values(), strict=True):
            _print(summary, bundle)
            note_quality(bundle.manifest.quality)
        terminal.say(f"{terminal.visible(str(self.out / CATALOG))}: {', '.join(bundles)}")
        return 0

    def _target(self) -> Path:
        if (self.out is None) == (self.name is None):
            raise OptionError("say where the bundle goes: either -o OUT.dsedge, or --name NAME for the local store")
        if self.name is not None:
            return store.place(self.name)
        assert self.out is not None
        if self.out.suffix != store.SUFFIX:
            raise OptionError(f"{self.out}: a bundle's folder ends in {store.SUFFIX}, such as {self.out}{store.SUFFIX}")
        return self.out


def _checked(terms: str | None) -> str | None:
    """The license as a text. Raises OptionError for bytes that are none."""
    from edge.tokenizer import check_text

    if terms is not None:
        terms = texts.decode_word(terms)
        check_text(terms, "--license")
    return terms


def parse_targets(text: str | None) -> tuple[str, ...] | None:
    """The targets that an option names; None where it is not given. Raises OptionError."""
    # Not at the top: targets belong to the workstation side, which the command line's help does without.
    from exporters import targets

    return None if text is None else targets.parse(text)


def _contexts(text: str | None) -> list[int] | None:
    """Whole numbers with commas between them. Raises OptionError."""
    if text is None:
        return None
    try:
        return [int(item) for item in text.split(",")]
    except ValueError as error:
        raise OptionError(f"--contexts is {text!r}; write such as 512,2048") from error


def _print(summary: Mapping[str, Any], bundle: Bundle) -> None:
    terminal.say(
        f"{terminal.visible(summary['path'])}: {terminal.megabytes(summary['bytes'])}, "
        f"{summary['parameters'] / 1e6:.1f} M weights at {summary['bits_per_weight']:.2f} bits"
    )
    print_quality(bundle.manifest.quality)
