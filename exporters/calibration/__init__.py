"""Calibration: what an export does beyond rounding, by the effort that it was asked for, and on which text.

text        the samples
calibrator  the quantized model, segment by segment, on its own inputs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from edge.chat import check_templates
from edge.errors import OptionError
from edge.tokenizer import build_tokenizer
from exporters.calibration import calibrator, text
from exporters.calibration.text import Calibration
from exporters.checkpoint import TokenizerFiles
from exporters.payload_writer import Plan
from exporters.quant.method import DEFAULT

# The method of a recipe's rules that name none.
EFFORTS = {"none": DEFAULT, "medium": "gptq"}
NO_EFFORT = "none"


def method_of(effort: str) -> str:
    """Raises OptionError for an unknown effort."""
    if effort not in EFFORTS:
        raise OptionError(f"unknown effort {effort!r}; known are {', '.join(EFFORTS)}")
    return EFFORTS[effort]


def read_samples(
    path: str | Path | None,
    plans: Mapping[str, Plan],
    files: TokenizerFiles,
    *,
    context: int,
    measured: Sequence[str],
) -> Calibration | None:
    """What to calibrate on, None where no plan needs it. Raises what `text.read` does, and OptionError for a text that
    nothing would be done with."""
    if not calibrator.needed(plans):
        if path is not None:
            raise OptionError(
                f"calibration text {path} would not be used: no matrix is quantized by a method that needs one; "
                "ask for an effort, or leave the text out"
            )
        return None
    tokenizer = build_tokenizer(files.tokenizer, files)
    templates = check_templates(files.chat_template, files.chat_templates, files.special)
    found = None if path is None else Path(path)
    return text.read(found, tokenizer, templates, context=context, measured=measured)
