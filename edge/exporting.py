"""The facade of the exporter: imports it only when it is called, so that a device never needs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edge.bundle import Bundle


def export(
    source: str | Path,
    out: str | Path,
    *,
    recipe: str | Path | None = None,
    name: str | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Bundle:
    """Turn a checkpoint (folder, .safetensors or .gguf) into the bundle `out`; see exporters.export.

    `recipe`: a shipped name or a TOML file, by default chosen by size. `progress` gets a stage and the share done.
    Raises CheckpointError, OptionError, StorageError, or NumericsError when the result fails its parity check.
    """
    from exporters.export import export as run

    return run(source, out, recipe=recipe, name=name, progress=progress)
