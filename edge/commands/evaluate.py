"""`dsedge eval`: how well a bundle predicts texts, alone or against another bundle or its source."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

import edge
from edge import store
from edge.bundle import Bundle
from edge.commands import terminal
from edge.commands.complete import BundleArgument, DeviceOption, KvDtypeOption, RuntimeOption
from edge.commands.quality import print_measured
from edge.errors import NotFoundError, OptionError
from edge.kv import KvDtype
from edge.measured import Measured
from edge.paths import expanded

if TYPE_CHECKING:
    from exporters.report.models import FromBundle
    from exporters.report.prompts import Answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Evaluate a bundle on texts, or let it answer prompts.

    The runtime that would answer reads at most 8192 tokens of each text; without --text, those of the quality report
    (prose, code and dialogue). With --against, its predictions are set against those of another bundle, or of a
    checkpoint in float32; with --report and a checkpoint, every head is weighed too. With --prompts both models answer
    greedily, side by side.
    """

    model: BundleArgument
    against: Annotated[
        Path | None,
        typer.Option(metavar="OTHER", help="A bundle, a model folder, .safetensors or .gguf file.", parser=expanded),
    ] = None
    text: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A text that the bundle was not calibrated on; repeatable.", parser=expanded),
    ] = None
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="Answer these greedily, side by side with OTHER.", parser=expanded),
    ] = None
    max_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Tokens of an answer to a prompt.")] = 64
    report: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Also write quality.json and quality.html there.", parser=expanded),
    ] = None
    runtime: RuntimeOption = "auto"
    device: DeviceOption = "auto"
    kv_dtype: KvDtypeOption = "auto"
    json: Annotated[bool, typer.Option("--json", help="One line of JSON instead of a table.")] = False

    def execute(self) -> int:
        if self.prompts is not None and (self.text or self.report is not None):
            raise OptionError("--prompts sets answers side by side; leave out --text and --report")
        bundle = edge.open_bundle(store.resolve(self.model))
        if self.prompts is not None:
            return self._answer(bundle, self.prompts)
        if self.report is not None:
            return self._report(bundle, self.report)
        from exporters import evaluation

        with terminal.progress() as progress:
            found = evaluation.evaluate(self._own(bundle), self.text or [], self.against, progress)
        self._tell(bundle, found)
        return 0

    def _report(self, bundle: Bundle, folder: Path) -> int:
        from exporters import evaluation, quality

        if not folder.is_dir():
            raise NotFoundError(f"no folder {str(folder)!r}; make it first")
        with terminal.progress() as progress:
            found = evaluation.report(self._own(bundle), self.text or [], self.against, progress)
        path = folder / "quality.json"
        quality.write(found, path, bundle.manifest.name)
        assert found.measured is not None
        self._tell(bundle, found.measured)
        terminal.note(f"{path} and {path.with_suffix('.html').name}: written")
        return 0

    def _answer(self, bundle: Bundle, prompts: Path) -> int:
        from exporters import evaluation

        with terminal.progress() as progress:
            found = evaluation.answer(self._own(bundle), prompts, self.against, self.max_tokens, progress)
        if self.json:
            terminal.print_json({"path": str(bundle.path), **found.to_json()})
        else:
            print_answers(found, bundle.manifest.name)
        return 0

    def _own(self, bundle: Bundle) -> FromBundle:
        # Not at the top: checkpoints belong to the workstation side, which the other commands do without.
        from exporters.report.models import FromBundle

        return FromBundle(bundle, self.runtime, cast(KvDtype, self.kv_dtype), device=self.device)

    def _tell(self, bundle: Bundle, found: Measured) -> None:
        if self.json:
            terminal.print_json({"path": str(bundle.path), **asdict(found)})
        else:
            print_measured(found)


def print_answers(found: Answers, name: str) -> None:
    """Each prompt, what both models answer up to the first different token, and how each goes on."""
    for number, item in enumerate(found.answers, 1):
        terminal.say(f"{number}. {_line(item.prompt)}")
        rows = [(name, item.answer)]
        if item.other is not None:
            rows = [("both", item.common)] if item.common else []
            if not item.same:
                rows += [(name, item.answer[len(item.common) :]), (found.other, item.other[len(item.common) :])]
        for title, text in rows:
            terminal.say(f"   {terminal.visible(title)}: {_line(text)}")
    if found.agreed is not None:
        terminal.say(
            f"{found.same} of {len(found.answers)} answers are the same; {found.agreed:.1f} of at most {found.limit} "
            "tokens come before the first different one"
        )


def _line(text: str) -> str:
    return terminal.visible(" ".join(text.split()))
