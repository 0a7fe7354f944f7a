"""`dsedge eval`: how well a bundle predicts a text, alone or against another bundle or its source."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

import edge
from edge import store
from edge.commands import terminal
from edge.commands.complete import BundleArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Evaluate a bundle on a text.

    The runtime that would answer reads at most 8192 tokens of the text. With --against, its predictions are set
    against those of another bundle, or of a checkpoint in float32.
    """

    model: BundleArgument
    text: Annotated[Path, typer.Option(metavar="FILE", help="The text; not one that the bundle was calibrated on.")]
    against: Annotated[
        Path | None, typer.Option(metavar="OTHER", help="A bundle, a model folder, .safetensors or .gguf file.")
    ] = None
    json: Annotated[bool, typer.Option("--json", help="One line of JSON instead of a table.")] = False

    def execute(self) -> int:
        bundle = edge.open_bundle(store.resolve(self.model))
        # Not at the top: checkpoints belong to the workstation side, which the other commands do without.
        from exporters import evaluation

        with terminal.progress() as progress:
            found = evaluation.evaluate(bundle, self.text, self.against, progress)
        if self.json:
            terminal.print_json({"path": str(bundle.path), **asdict(found)})
            return 0
        rows = [("perplexity", f"{found.perplexity:.2f}")]
        if found.against is not None:
            rows += [
                ("perplexity of the other", f"{found.against.perplexity:.2f}"),
                ("mean KL", f"{found.against.mean_kl:.5f}"),
                ("99% KL", f"{found.against.p99_kl:.3f}"),
                ("same top token", f"{found.against.top1:.1%}"),
            ]
        terminal.print_table((f"{found.tokens} tokens in {found.samples} samples", ""), rows, sys.stdout)
        return 0
