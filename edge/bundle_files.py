"""The files of a bundle: each is one that the manifest lists, a real file of the size and SHA-256 that stand there.

Nothing else is ever read: a graph may refer to listed files alone, and links of both kinds are refused, because what
they lead to can be changed from outside.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from edge import texts
from edge.errors import BundleError
from edge.onnx_files import external_locations
from edge.sums import SumCache, sha256

if TYPE_CHECKING:
    from edge.bundle import FileInfo, GraphInfo


SIGNATURE = "manifest.sig"  # over the manifest, so it cannot be listed there
SIGNATURE_LIMIT = 4096  # bytes


def relative_path(folder: Path, name: str) -> PurePosixPath:
    """The path of a file that a manifest names. Raises BundleError for one that leaves the bundle."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or not pure.parts or {"..", "."} & set(pure.parts) or "\\" in name or ":" in name:
        raise BundleError(f"{folder}: the manifest names {name!r}, which leaves the bundle")
    if not name.isprintable():  # a NUL, an escape code, half a surrogate pair
        raise BundleError(f"{folder}: the manifest names {name!r}, which can be no file's name")
    return pure


def check_files(folder: Path, files: Mapping[str, FileInfo], sums: SumCache | None) -> None:
    """Raise BundleError unless every listed file is there as listed. Sums that `sums` knows are not computed again."""
    paths = {name: relative_path(folder, name) for name in files}
    twice = [path for path, count in Counter(paths.values()).items() if count > 1]
    if twice:
        raise BundleError(f"{folder}: the manifest lists {twice[0]} twice")
    found = {name: _look(folder, path, files[name]) for name, path in paths.items()}
    inside = Counter((item.st_dev, item.st_ino) for item in found.values())
    for name, item in found.items():
        path = folder / paths[name]
        if item.st_nlink > inside[item.st_dev, item.st_ino]:
            raise BundleError(
                f"{path}: has a second name outside of the bundle (a hard link), by which it could be changed; "
                "copy the bundle and use the copy"
            )
        _check_sum(path, item, files[name].sha256, sums)


def check_graphs(folder: Path, graphs: Mapping[str, GraphInfo], files: Mapping[str, FileInfo]) -> None:
    """Raise BundleError for a graph that is not listed, or that reads a file which is not."""
    listed = {PurePosixPath(name) for name in files}
    for item in graphs.values():
        if item.file not in files:
            raise BundleError(f"{folder}: graph file {item.file!r} is not among the files")
        if item.kind != "onnx":
            continue  # its runtime knows what it reads
        beside = PurePosixPath(item.file).parent
        for location in sorted(external_locations(folder / item.file)):
            try:
                path = beside / relative_path(folder, location)
            except BundleError as error:
                raise BundleError(
                    f"{folder / item.file}: its weights are in {location!r}, which leaves the bundle"
                ) from error
            if path not in listed:
                raise BundleError(
                    f"{folder / item.file}: its weights are in {location!r}, which the manifest does not list"
                )


def foreign(folder: Path, manifest: str) -> str:
    """Why a folder is not a whole bundle of any version of the format and nothing else; empty if it is one."""
    try:
        data = texts.read_json(folder / manifest)
        sizes = {name: entry["size"] for name, entry in data["files"].items()}
        paths = {name: folder / relative_path(folder, name) for name in sizes}
        if not {"format", "spec", "tokenizer"} <= set(data):
            raise ValueError
        if (folder / manifest).is_symlink():
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, AttributeError, BundleError):
        return "exists and is no bundle"
    strays = unlisted(folder, sizes, manifest)
    if strays:
        return f"holds {strays[0]}, which is no part of the bundle there"
    broken = [name for name, path in paths.items() if not path.is_file() or path.stat().st_size != sizes[name]]
    return f"its {broken[0]} is missing or of another size than its manifest says" if broken else ""


def unlisted(folder: Path, files: Iterable[str], manifest: str) -> list[str]:
    """What lies in the folder besides the manifest, its signature and the files that it lists, as relative paths; links
    included."""
    known = {PurePosixPath(manifest), PurePosixPath(SIGNATURE), *(PurePosixPath(name) for name in files)}
    folders = {parent for path in known for parent in path.parents}
    found = []
    for where, inner, names in os.walk(folder):
        below = PurePosixPath(Path(where).relative_to(folder).as_posix())
        found += [below / name for name in names if below / name not in known]
        found += [below / name for name in inner if below / name not in folders or (Path(where) / name).is_symlink()]
    return sorted(path.as_posix() for path in found)


def _look(folder: Path, relative: PurePosixPath, info: FileInfo) -> os.stat_result:
    path = folder / relative
    try:
        for parent in [path, *list(path.parents)[: len(relative.parts) - 1]]:
            if parent.is_symlink():
                raise BundleError(f"{parent}: is a link; files of a bundle are real files")
        found = path.stat()
    except OSError as error:
        raise BundleError(f"{path}: missing; copy or export the bundle again") from error
    if not stat.S_ISREG(found.st_mode) or found.st_size != info.size:
        raise BundleError(f"{path}: {found.st_size} bytes where the manifest says {info.size}; export or copy it again")
    return found


def _check_sum(path: Path, found: os.stat_result, expected: str, sums: SumCache | None) -> None:
    if sums and sums.get(path, found) == expected:
        return
    try:
        digest = sha256(path)
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}") from error
    if sums:
        sums.put(path, found, digest)
    if digest != expected:
        raise BundleError(f"{path}: its SHA-256 is not the manifest's; the file was changed or damaged")
