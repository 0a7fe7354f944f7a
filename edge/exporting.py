"""The facade of the exporter: imports it only when it is called, so that a device never needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing import Unpack

    from edge.bundle import Bundle
    from edge.progress import Progress


QUICK = "none"  # the effort where somebody waits for an answer: rounding, without calibration


class ExportOptions(TypedDict, total=False):
    """What an export may be told.

    recipe       a shipped recipe's name or a TOML file; by default chosen by size
    name         the model's name in the manifest; by default the folder's
    targets      what to make besides the payload, of exporters.targets.TARGETS; by default whatever can be made here
    effort       how codes are found where the recipe does not say: "medium" calibrates (the default), "none" rounds
                 each number to the nearest one: seconds instead of minutes, and far less close to the source; "high"
                 trains the calibrated codes against the source's answers, with torch: longer still, and closer
    calibration  a text or JSONL file to calibrate on, or "self" for text that the model writes; by default a built-in
                 mix of prose, code and dialogue
    bits         a limit for the whole payload, in bits a weight: the heads and matrices that cost most in four bits get
                 eight; the recipe is int4-g32-sym where none is named
    gate         conditions such as "kl<=0.12,code.top1>=0.8" (see exporters.gate), without which nothing is published
    report       "quick" compares on 128 tokens, "full" on three held-out texts, head by head: minutes; by default what
                 the gate needs
    contexts     context lengths of the functions of a Core ML package, multiples of 32; by default 512 and 2048
    minimum_os   the oldest system that a Core ML package must run on, such as "iOS18", the oldest that there is
    resume       keep what is done when the export is interrupted, in a hidden folder beside `out`, and go on from it
    progress     gets a stage and the share of it that is done
    """

    recipe: str | Path | None
    name: str | None
    targets: Sequence[str] | None
    effort: str | None
    calibration: str | Path | None
    bits: float | None
    gate: str | None
    report: str | None
    contexts: Sequence[int] | None
    minimum_os: str | None
    resume: bool
    progress: Callable[[str, float], None] | None


def export(source: str | Path, out: str | Path, **options: Unpack[ExportOptions]) -> Bundle:
    """Turn a checkpoint (folder, .safetensors or .gguf) into the bundle `out`; see `ExportOptions`.

    Raises CheckpointError, OptionError, StorageError, UnsupportedError for a target that cannot be made of the model,
    GateError when the bundle misses the gate, or NumericsError when a runtime does not compute what the reference does.
    """
    from exporters.export import export as run

    return run(source, out, **options)


def copy_bundle(source: Path, target: Path, progress: Progress) -> None:
    """Copy a bundle to `target`, which appears whole or not at all; see exporters.bundle_copy."""
    from exporters.bundle_copy import copy_bundle as run

    run(source, target, progress)
