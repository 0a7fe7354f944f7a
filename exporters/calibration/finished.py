"""Encoded matrices of a calibration that may be interrupted: a file for each group of matrices, whole or not there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from exporters.payload_writer import EncodedRows, Job


class Finished:
    """The groups that are finished, by name. Without a folder nothing is kept, and nothing is found.

    Whoever names the folder sees to it that the same source, recipe and text belong to it.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        if folder is not None:
            folder.mkdir(exist_ok=True)

    @property
    def keeps(self) -> bool:
        return self._folder is not None

    def has(self, group: str) -> bool:
        return self._folder is not None and self._path(self._folder, group).is_file()

    def read(self, group: str, jobs: Sequence[Job]) -> list[EncodedRows]:
        """What became of the jobs of a group that is there."""
        assert self._folder is not None
        with np.load(self._path(self._folder, group)) as file:
            found = []
            for index, job in enumerate(jobs):
                prefix = f"{index}/"
                parts = {name.removeprefix(prefix): file[name] for name in file.files if name.startswith(prefix)}
                zero = bool(parts.pop("zero.flag"))
                found.append(EncodedRows(job, parts, zero))
        return found

    def write(self, group: str, encoded: Sequence[EncodedRows]) -> None:
        """Keep what became of a group's jobs, in their order."""
        if self._folder is None:
            return
        path = self._path(self._folder, group)
        arrays = {f"{i}/{part}": values for i, rows in enumerate(encoded) for part, values in rows.parts.items()}
        arrays |= {f"{i}/zero.flag": np.asarray(rows.zero) for i, rows in enumerate(encoded)}
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)

    @staticmethod
    def _path(folder: Path, group: str) -> Path:
        return folder / f"{group}.npz"
