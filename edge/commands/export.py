"""`dsedge export`: from a checkpoint to a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import edge
from edge import store
from edge.commands import terminal
from edge.commands.inspect import describe
from edge.commands.quality import print_quality
from edge.errors import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Export a checkpoint (a folder of safetensors, or a GGUF file) to an int4 bundle."""

    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A model folder, .safetensors or .gguf file.")]
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="OUT.dsedge", help="The bundle's folder.")] = None
    name: Annotated[str | None, typer.Option(help="Put the bundle into the local store under this name.")] = None
    recipe: Annotated[
        str | None, typer.Option(metavar="sub1b|7b|FILE", help="Rules for the schemes. [default: by size]")
    ] = None
    json: Annotated[bool, typer.Option("--json", help="The summary as one line of JSON.")] = False

    def execute(self) -> int:
        target = self._target()
        with terminal.progress() as progress:
            bundle = edge.export(self.source, target, recipe=self.recipe, name=self.name, progress=progress)
        summary = describe(bundle)
        if self.json:
            terminal.print_json(summary)
        else:
            _print(summary)
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


def _print(summary: Mapping[str, Any]) -> None:
    print(
        f"{terminal.visible(summary['path'])}: {terminal.megabytes(summary['bytes'])}, "
        f"{summary['parameters'] / 1e6:.1f} M weights at {summary['bits_per_weight']:.2f} bits"
    )
    print_quality(summary["quality"])
