"""How a model's authors recommend to draw its tokens: the fields of `edge.options.Sampling` that a source names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge.errors import CheckpointError, OptionError
from edge.options import Sampling

# Of a generation_config.json, by the names of transformers' GenerationConfig.
_FOLDER = {name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")}
# Of a GGUF file, by the names of the gguf package's Keys.General.
_GGUF = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


def from_generation_config(config: Mapping[str, Any], where: Path) -> dict[str, float]:
    """Without do_sample, transformers is greedy whatever else the file says; with it, the temperature is 1 if unsaid.

    Raises CheckpointError for values out of range.
    """
    found = _read(config, _FOLDER, where)
    if config.get("do_sample") is True:
        return {"temperature": 1.0, **found}
    return {name: value for name, value in found.items() if name == "repetition_penalty"}


def from_gguf(metadata: Mapping[str, Any], where: Path) -> dict[str, float]:
    """Raises CheckpointError for values out of range."""
    return _read(metadata, _GGUF, where)


def _read(values: Mapping[str, Any], names: Mapping[str, str], where: Path) -> dict[str, float]:
    found = {ours: values[theirs] for theirs, ours in names.items() if values.get(theirs) is not None}
    if found.get("top_k") == -1:  # none, as in other ids of such files
        del found["top_k"]
    try:
        Sampling(**found)
    except OptionError as error:
        raise CheckpointError(f"{where}: {error}") from error
    # float32 numbers of a GGUF file, back to the decimals that they were written as.
    return {name: value if isinstance(value, int) else float(f"{value:.6g}") for name, value in found.items()}
