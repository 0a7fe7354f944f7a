"""The bundle, `NAME.dsedge/`: a folder that holds everything needed to run a model, and a manifest that vouches for it.

Opening trusts nothing: paths must stay inside the folder and be real files, sizes and SHA-256 sums must agree. Sums are
remembered in the user's cache by size and time of change, so that opening is quick; `verify_bundle` recomputes them.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from edge import bundle_files, graph, seal, texts
from edge.contents import Artefact, Origin
from edge.decoder import DecoderSpec
from edge.errors import BundleError, NotFoundError, OptionError, found_in
from edge.options import Sampling
from edge.quality import QualityReport
from edge.sums import SumCache
from edge.weights import Weights

FORMAT = "2.0"  # major.minor: readers refuse another major; a newer minor may have further keys
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer.json"
TEMPLATE = "chat_template.jinja"
TEMPLATES = "chat_templates"  # further templates, NAME.jinja
MANIFEST_LIMIT = 64 << 20  # bytes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """Special ids and texts: `eos` unites every source that names an end token; `special` is for the template.

    `eos_found` says where each end token was found: its id as a text → places, such as "config.json".
    """

    bos: int | None
    eos: tuple[int, ...]
    special: Mapping[str, str]
    add_bos: bool
    eos_found: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


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
    """What manifest.json says. `schemes` is the payload's scheme by canonical weight name, float32 where absent.

    `sampling` has the fields of `edge.options.Sampling` that the model's authors recommend. `precision` is what a
    runtime does more precisely than by itself, by the runtime's name: role of a weight, or "kv" → precision.
    """

    name: str
    spec: DecoderSpec
    schemes: Mapping[str, str]
    recipe: Mapping[str, Any]
    tokenizer: TokenizerInfo
    graphs: Mapping[str, GraphInfo]
    kv: Mapping[str, Any]
    toolchain: Mapping[str, str]
    minimum_os: Mapping[str, str] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    precision: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    artefacts: Mapping[str, Artefact] = field(default_factory=dict)
    origin: Origin | None = None
    quality: QualityReport = field(default_factory=QualityReport)
    files: Mapping[str, FileInfo] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self), "spec": self.spec.to_json()}

    @classmethod
    def from_json(cls, data: Any) -> Manifest:
        """The inverse of `to_json`; the sum of a sealed manifest is passed over.

        Raises BundleError for another major version of the format and for an ill-formed manifest; the keys that a newer
        minor version has added are left out.
        """
        newer = _check_format(data.get("format") if isinstance(data, dict) else None)
        try:
            values = {key: value for key, value in data.items() if key not in ("format", seal.KEY)}
            with found_in(BundleError):
                values["spec"] = DecoderSpec.from_json(values["spec"])
            info = values["tokenizer"]
            found = {token: _listed(places) for token, places in info.get("eos_found", {}).items()}
            info = {**info, "eos": _listed(info["eos"]), "eos_found": found}
            values["tokenizer"] = _record(TokenizerInfo, info, newer)
            values["graphs"] = {
                name: _record(
                    GraphInfo, {**item, "inputs": _listed(item["inputs"]), "outputs": _listed(item["outputs"])}, newer
                )
                for name, item in values["graphs"].items()
            }
            values["files"] = {name: _record(FileInfo, item, newer) for name, item in values["files"].items()}
            artefacts = values.get("artefacts", {})
            values["artefacts"] = {name: Artefact.from_json(item) for name, item in artefacts.items()}
            if values.get("origin") is not None:
                values["origin"] = Origin.from_json(values["origin"])
            values["quality"] = QualityReport.from_json(values.get("quality", {}))
            return _typed(_record(cls, values, newer))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise BundleError(f"manifest is ill-formed: {type(error).__name__}: {error}") from error


def unknown_keys(data: Mapping[str, Any]) -> list[str]:
    """The top-level keys of a manifest that this version does not read."""
    return sorted(set(data) - {"format", seal.KEY, *(item.name for item in fields(Manifest))})


def _check_format(found: Any) -> bool:
    """Whether a manifest's format is a newer minor version. Raises BundleError for one that is not read here."""
    known = [int(part) for part in FORMAT.split(".")]
    if type(found) is int:
        found = f"{found}.0"  # as the first bundles had it
    match = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,4})", found) if isinstance(found, str) else None
    if match is None:
        raise BundleError(f"manifest format {found!r}; this version reads {FORMAT}: export or pull the model again")
    major, minor = int(match[1]), int(match[2])
    if major != known[0]:
        advice = "update dsedge" if major > known[0] else "export or pull the model again"
        raise BundleError(f"manifest format {found}; this version reads {known[0]}.x: {advice}")
    return minor > known[1]


def _listed(value: Any) -> tuple[Any, ...]:
    """The items of a list. Raises TypeError for a text, whose characters would be taken for them."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"{value!r} is no list")
    return tuple(value)


def _record(kind: Callable[..., T], values: Mapping[str, Any], newer: bool) -> T:
    """One of our records. Raises ValueError for a key that it does not have, unless a newer version wrote it."""
    known = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(values) - known)
    if unknown and not newer:
        raise ValueError(f"unknown keys {', '.join(map(repr, unknown))}")
    return kind(**{key: value for key, value in values.items() if key in known})


def _typed(manifest: Manifest) -> Manifest:
    """Raise ValueError for the field types that later code relies on."""
    if not isinstance(manifest.name, str):
        raise ValueError("the name must be a text")
    for name in ("recipe", "kv"):
        if not isinstance(getattr(manifest, name), dict):
            raise ValueError(f"{name} must be a table")
    for name in ("schemes", "toolchain", "minimum_os"):
        _check_texts(name, getattr(manifest, name))
    try:
        Sampling(**manifest.sampling)
    except OptionError as error:
        raise ValueError(f"sampling: {error}") from error
    _check_precision(manifest.precision)
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
    for places in info.eos_found.values():
        _check_texts("eos_found", dict(enumerate(places)))
    for file in manifest.files.values():
        if type(file.size) is not int or file.size < 0 or not isinstance(file.sha256, str):
            raise ValueError("a file's size or sha256 is no such thing")
    return manifest


def _check_precision(precision: Any) -> None:
    if not isinstance(precision, dict):
        raise ValueError("precision must be a table")
    for name, wanted in precision.items():
        _check_texts(f"precision of {name}", wanted)


def _check_texts(name: str, table: Mapping[Any, str]) -> None:
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
        with found_in(BundleError, self.path):
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


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a manifest, sealed, into a bundle's folder. The same manifest gives the same bytes. Raises OSError."""
    (folder / MANIFEST).write_text(seal.seal(manifest.to_json()), encoding="utf-8", newline="\n")


def verify_bundle(path: Path | str) -> Bundle:
    """Open a bundle with every sum recomputed."""
    return _open(Path(path), trust_cache=False)


def _open(path: Path, *, trust_cache: bool) -> Bundle:
    if not path.is_dir():
        raise NotFoundError(f"{path}: no bundle there; a bundle is a folder that `dsedge export` has written")
    manifest = read_manifest(path / MANIFEST)
    sums = SumCache() if trust_cache else None
    bundle_files.check_files(path, manifest.files, sums)
    for needed in (WEIGHTS, TOKENIZER):
        if needed not in manifest.files:
            raise BundleError(f"{path}: the manifest lists no {needed}")
    bundle_files.check_graphs(path, manifest.graphs, manifest.files)
    for name, artefact in manifest.artefacts.items():
        missing = artefact.lacks(manifest.files)
        if missing is not None:
            raise BundleError(f"{path}: {missing!r} of artefact {name} is not among the files")
    if sums:
        sums.save()
    opened = Bundle(path.resolve(), manifest)
    _ = opened.weights  # the payload's header against spec and schemes: 4 ms for 272 weights
    return opened


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file, its files not looked at. Raises BundleError, which names the file."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or path.is_symlink() or found.st_size > MANIFEST_LIMIT:
            raise BundleError(f"{path}: no real file, or larger than a manifest can be")
        text = texts.decode(path.read_bytes())
        data = texts.parse_json(text, unique=True)
    except FileNotFoundError as error:
        raise BundleError(f"{path.parent}: holds no {MANIFEST}; it is no bundle, or an unfinished one") from error
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BundleError(f"{path}: is no JSON ({error}); the bundle is damaged") from error
    try:
        manifest = Manifest.from_json(data)
    except BundleError as error:
        raise BundleError(f"{path}: {error}") from error
    if not seal.is_sealed(text):
        raise BundleError(f"{path}: its own SHA-256 ({seal.KEY}) is not its text's; it was changed or damaged")
    return manifest
