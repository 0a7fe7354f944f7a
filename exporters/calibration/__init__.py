"""Calibration: what an export does beyond rounding, by the effort that it was asked for, and on which text.

text        the samples of a text
own         the samples that the model writes
calibrator  the quantized model, segment by segment, on its own inputs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge.chat import check_templates
from edge.errors import OptionError
from edge.tokenizer import build_tokenizer
from exporters import distill
from exporters.architectures import Model
from exporters.calibration import calibrator, own, text
from exporters.calibration.text import Calibration
from exporters.checkpoint import TokenizerFiles
from exporters.payload_writer import Plan
from exporters.quant.method import DEFAULT


@dataclass(frozen=True, slots=True)
class Effort:
    """The method of a recipe's rules that name none; whether keys are equalized, codes distilled, and bits chosen by
    weighing heads; tokens of text at most."""

    method: str
    equalizes: bool = True
    distills: bool = False
    weighs: bool = False
    tokens: int = text.TOKENS


EFFORTS = {"none": Effort(DEFAULT, equalizes=False), "medium": Effort("heads"), "high": Effort("heads", distills=True)}
DEFAULT_EFFORT = "medium"
Progress = Callable[[float], None]
Samples = Callable[[Progress], Calibration]


def find(name: str) -> Effort:
    """The effort of that name. Raises OptionError for an unknown one."""
    if name not in EFFORTS:
        raise OptionError(f"unknown effort {name!r}; known are {', '.join(EFFORTS)}")
    return EFFORTS[name]


def choose(
    source: str | Path | None, model: Model, plans: Mapping[str, Plan], files: TokenizerFiles,
    *, effort: Effort, measured: Sequence[str],
) -> Samples | None:  # fmt: skip
    """What to calibrate on, None where nothing needs it: the built-in mix, a text, or the model's own text.

    A text is read here. Raises what `text.read` does, and OptionError for a source that nothing would be done with, or
    a model that is too large to write its own text.
    """
    distills = effort.distills and distill.useful(plans)
    if not (distills or effort.weighs or calibrator.needed(plans)):
        if source is not None:
            raise OptionError(
                f"calibration text {source} would not be used: no matrix is quantized by a method that needs one; "
                "ask for an effort, or leave the text out"
            )
        return None
    tokenizer = build_tokenizer(files.tokenizer, files)
    if str(source) == own.NAME:
        own.check(model)
        return lambda progress: own.read(model, tokenizer, measured, progress)
    templates = check_templates(files.chat_template, files.chat_templates, files.special)
    path = None if source is None else Path(source)
    context = model.spec.context
    found = text.read(path, tokenizer, templates, context=context, measured=measured, tokens=effort.tokens)
    return lambda progress: found
