"""The bundle, `NAME.dsedge/`: a folder that holds everything needed to run a model, and a manifest that vouches for it.

Opening trusts nothing: paths must stay inside the folder and be real files, sizes and SHA-256 sums must agree. Sums are
remembered in the user's cache by size and time of change, so that opening is quick; `verify_bundle` recomputes them.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from edge import graph, texts
from edge.decoder import DecoderSpec
from edge.errors import BundleError, NotFoundError
from edge.files import write_whole
from edge.paths import cache_folder
from edge.weights import Weights

FORMAT = 1
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer.json"
TEMPLATE = "chat_template.jinja"
_MANIFEST_LIMIT = 64 << 20


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """Special ids and texts: `eos` unites every source that names an end token; `special` is for the template."""

    bos: int | None
    eos: tuple[int, ...]
    special: Mapping[str, str]
    add_bos: bool


@dataclass(frozen=True, slots=True)
class GraphInfo:
    """An executable graph of the bundle: its file, kind ("onnx") and the names of its I/O.

    `precision` says how each linear, by output, takes its activations: "int8", "int16" or "float".
    """

    file: str
    kind: str
    precision: Mapping[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileInfo:
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What manifest.json says. `schemes` is the payload's scheme by canonical weight name, float32 where absent."""

    name: str
    spec: DecoderSpec
    schemes: Mapping[str, str]
    recipe: Mapping[str, Any]
    tokenizer: TokenizerInfo
    graphs: Mapping[str, GraphInfo]
    kv: Mapping[str, Any]
    toolchain: Mapping[str, str]
    minimum_os: Mapping[str, str] = field(default_factory=dict)
    quality: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, FileInfo] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self), "spec": self.spec.to_json()}

    @classmethod
    def from_json(cls, data: Any) -> Manifest:
        """The inverse of `to_json`. Raises BundleError for another format version or an ill-formed manifest."""
        found = data.get("format") if isinstance(data, dict) else type(data).__name__
        if type(found) is not int or found != FORMAT:
            raise BundleError(f"manifest format {found!r}; this version reads {FORMAT}: export the model again")
        try:
            values = {key: value for key, value in data.items() if key != "format"}
            values["spec"] = DecoderSpec.from_json(values["spec"])
            info = values["tokenizer"]
            values["tokenizer"] = TokenizerInfo(**{**info, "eos": tuple(info["eos"])})
            values["graphs"] = {
                name: GraphInfo(**{**item, "inputs": tuple(item["inputs"]), "outputs": tuple(item["outputs"])})
                for name, item in values["graphs"].items()
            }
            values["files"] = {name: FileInfo(**item) for name, item in values["files"].items()}
            return _typed(cls(**values))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise BundleError(f"manifest is ill-formed: {type(error).__name__}: {error}") from error


def _typed(manifest: Manifest) -> Manifest:
    """Raise ValueError for the field types that later code relies on."""
    if not isinstance(manifest.name, str):
        raise ValueError("the name must be a text")
    for name in ("recipe", "kv", "quality"):
        if not isinstance(getattr(manifest, name), dict):
            raise ValueError(f"{name} must be a table")
    for name in ("schemes", "toolchain", "minimum_os"):
        _check_texts(name, getattr(manifest, name))
    for item in manifest.graphs.values():
        _check_texts("precision", item.precision)
        if not all(isinstance(text, str) for text in (item.file, item.kind, *item.inputs, *item.outputs)):
            raise ValueError("a graph's file, kind, inputs and outputs must be texts")
    info = manifest.tokenizer
    ids = [*info.eos, *([] if info.bos is None else [info.bos])]
    if not all(type(i) is int and 0 <= i < manifest.spec.vocab_size for i in ids):
        raise ValueError("a bos or eos id is outside the vocabulary")
    if type(info.add_bos) is not bool:
        raise ValueError("add_bos must be true or false")
    _check_texts("special", info.special)
    for file in manifest.files.values():
        if type(file.size) is not int or file.size < 0 or not isinstance(file.sha256, str):
            raise ValueError("a file's size or sha256 is no such thing")
    return manifest


def _check_texts(name: str, table: Mapping[str, str]) -> None:
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise ValueError(f"{name} must be a table of texts")


@dataclass(frozen=True)
class Bundle:
    """An opened bundle. Nothing but the manifest and the payload's header is in memory."""

    path: Path
    manifest: Manifest

    @property
    def spec(self) -> DecoderSpec:
        return self.manifest.spec

    @cached_property
    def graph(self) -> graph.Graph:
        return graph.build(self.spec)

    @cached_property
    def weights(self) -> Weights:
        return Weights(self.path / WEIGHTS, self.graph.weights, self.manifest.schemes)

    def read_text(self, name: str) -> str | None:
        """A text file of the bundle, None if the bundle has none of that name."""
        if name not in self.manifest.files:
            return None
        try:
            return texts.read(self.path / name)
        except (OSError, UnicodeDecodeError) as error:
            raise BundleError(f"{self.path / name}: cannot be read as text: {error}") from error


def open_bundle(path: Path | str) -> Bundle:
    """Open a bundle; files whose sums are known by size and time of change are not read again.

    Raises NotFoundError where there is none and BundleError for one that is not whole.
    """
    return _open(Path(path), trust_cache=True)


def verify_bundle(path: Path | str) -> Bundle:
    """Open a bundle with every sum recomputed."""
    return _open(Path(path), trust_cache=False)


def _open(path: Path, *, trust_cache: bool) -> Bundle:
    if not path.is_dir():
        raise NotFoundError(f"{path}: no bundle there; a bundle is a folder that `dsedge export` has written")
    manifest = read_manifest(path / MANIFEST)
    sums = _SumCache() if trust_cache else None
    for name, info in manifest.files.items():
        _check_file(path, name, info, sums)
    for needed in (WEIGHTS, TOKENIZER):
        if needed not in manifest.files:
            raise BundleError(f"{path}: the manifest lists no {needed}")
    for item in manifest.graphs.values():
        if item.file not in manifest.files:
            raise BundleError(f"{path}: graph file {item.file!r} is not among the files")
    if sums:
        sums.save()
    opened = Bundle(path.resolve(), manifest)
    _ = opened.weights  # the payload's header against spec and schemes: 4 ms for 272 weights
    return opened


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file, its files not looked at. Raises BundleError unless it is a whole one."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or path.is_symlink() or found.st_size > _MANIFEST_LIMIT:
            raise BundleError(f"{path}: no real file, or larger than a manifest can be")
        return Manifest.from_json(texts.read_json(path))
    except FileNotFoundError as error:
        raise BundleError(f"{path.parent}: holds no {MANIFEST}; it is no bundle, or an unfinished one") from error
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BundleError(f"{path}: is no JSON; the bundle is damaged") from error


def relative_path(folder: Path, name: str) -> PurePosixPath:
    """The path of a file that a manifest names. Raises BundleError for one that leaves the bundle."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or not pure.parts or {"..", "."} & set(pure.parts) or "\\" in name or ":" in name:
        raise BundleError(f"{folder}: the manifest names {name!r}, which leaves the bundle")
    if not name.isprintable():  # a NUL, an escape code, half a surrogate pair
        raise BundleError(f"{folder}: the manifest names {name!r}, which can be no file's name")
    return pure


def _check_file(folder: Path, name: str, info: FileInfo, sums: _SumCache | None) -> None:
    pure = relative_path(folder, name)
    path = folder / pure
    try:
        for parent in [path, *list(path.parents)[: len(pure.parts) - 1]]:
            if parent.is_symlink():
                raise BundleError(f"{parent}: is a link; files of a bundle are real files")
        found = path.stat()
    except OSError as error:
        raise BundleError(f"{path}: missing; copy or export the bundle again") from error
    if not stat.S_ISREG(found.st_mode) or found.st_size != info.size:
        raise BundleError(f"{path}: {found.st_size} bytes where the manifest says {info.size}; export or copy it again")
    if sums and sums.get(path, found) == info.sha256:
        return
    try:
        digest = sha256(path)
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}") from error
    if sums:
        sums.put(path, found, digest)
    if digest != info.sha256:
        raise BundleError(f"{path}: its SHA-256 is not the manifest's; the file was changed or damaged")


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _SumCache:
    """SHA-256 sums by path, size, inode and time of change, in one small file of the user's cache."""

    def __init__(self) -> None:
        self._path = cache_folder() / "sums.json"
        self._dirty = False
        try:
            self._sums: dict[str, str] = texts.read_json(self._path)
        except (OSError, ValueError):
            self._sums = {}  # absent or damaged: every sum is computed anew
        if not isinstance(self._sums, dict):
            self._sums = {}

    def get(self, path: Path, found: os.stat_result) -> str | None:
        return self._sums.get(self._key(path, found))

    def put(self, path: Path, found: os.stat_result, digest: str) -> None:
        self._sums[self._key(path, found)] = digest
        self._dirty = True

    def save(self) -> None:
        if not self._dirty:
            return
        recent = dict(list(self._sums.items())[-1000:])
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(recent))
        except OSError:
            pass  # a cache that cannot be written only costs time

    @staticmethod
    def _key(path: Path, found: os.stat_result) -> str:
        return f"{path.absolute()}|{found.st_size}|{found.st_mtime_ns}|{found.st_ino}"
