"""The catalogue: models known by name, where they come from, and what must arrive.

The models are data: `catalog.toml`, which ships with the program and says what its keys mean, and further files of the
same form, named by DSEDGE_CATALOG or by an option. `edge.download` fetches what an entry describes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from edge import texts
from edge.errors import NotFoundError, OptionError
from edge.paths import expanded
from edge.sources.addresses import shown

Form = Literal["file", "folder", "bundle"]
VARIABLE = "DSEDGE_CATALOG"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of a model
_FILE = re.compile(r"(?![.])[^/\\:\x00-\x1f\x7f]+")  # the plain name of a file, on any system
_SHA256 = re.compile(r"[0-9a-f]{64}")
# Nothing but a name and a version: options and addresses would make pip build, and run, what it finds there.
_PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*")


@dataclass(frozen=True, slots=True)
class Wheel:
    """Members of packages of the package index, joined in order: (pinned requirement, path in the wheel) each."""

    members: tuple[tuple[str, str], ...]

    forms = ("file",)

    def __str__(self) -> str:
        return " + ".join(requirement for requirement, _ in self.members)


@dataclass(frozen=True, slots=True)
class Hub:
    """A repository of the Hugging Face hub: one file of it, or all that an export reads."""

    repo: str
    revision: str = "main"
    file: str | None = None

    forms = ("file", "folder")

    def __str__(self) -> str:
        return f"hub {self.repo}"


@dataclass(frozen=True, slots=True)
class Url:
    """An http(s) address: of the file, or of the folder that a bundle's files lie below."""

    url: str

    forms = ("file", "bundle")

    def __str__(self) -> str:
        return shown(self.url)


@dataclass(frozen=True, slots=True)
class Local:
    """A path, in a catalogue file relative to that file's folder."""

    path: Path

    forms = ("file", "folder", "bundle")

    def __str__(self) -> str:
        return str(self.path)


Source = Wheel | Hub | Url | Local
SOURCES: dict[str, type[Source]] = {"wheel": Wheel, "hub": Hub, "url": Url, "path": Local}


@dataclass(frozen=True, slots=True)
class Model:
    """A model by name. Its sources, tried in order, all deliver the same thing, of one `form`:

    file     one checkpoint file, called `file`; `sha256` is its own
    folder   a checkpoint folder; there is no sum for it
    bundle   an exported bundle; `sha256` is that of its manifest, which vouches for the other files

    `size` is in bytes: exact with a sha256 of a file, otherwise about right. `variant` names the recipe to export with.
    `aliases` are what other programs call the model.
    """

    name: str
    title: str
    family: str
    variant: str
    license: str
    size: int
    sources: tuple[Source, ...]
    form: Form = "file"
    file: str = ""
    sha256: str | None = None
    terms: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Catalog:
    default: str
    models: Mapping[str, Model]


@cache
def shipped() -> Catalog:
    """The catalogue that ships with the program."""
    data = texts.read_toml(Path(__file__).with_name("catalog.toml"))
    return Catalog(data["default"], _models(data, Path(__file__).parent))


def load_catalog(extra: Path | None = None) -> Catalog:
    """The shipped catalogue with the files of DSEDGE_CATALOG and `extra`; of models of one name the last counts.

    Raises NotFoundError for a file that is not there and OptionError for one that is no catalogue.
    """
    models = dict(shipped().models)
    named = [Path(item) for item in os.environ.get(VARIABLE, "").split(os.pathsep) if item]
    for path in [*named, *([extra] if extra else [])]:
        models.update(_read(path))
    return Catalog(shipped().default, models)


def find(name: str, extra: Path | None = None) -> Model:
    """The model of that name, in any case, or of that common name. Raises NotFoundError naming those that there are."""
    # Not at the top: names are made out with the catalogue.
    from edge.naming import canonical, suggestion

    catalog = load_catalog(extra)
    found = catalog.models.get(canonical(name, (), catalog))
    if found is None:
        near = suggestion(name, (), catalog)
        raise NotFoundError(f"the catalogue has no model {name!r}; it has {', '.join(sorted(catalog.models))}{near}")
    return found


def _read(path: Path) -> dict[str, Model]:
    try:
        data = texts.read_toml(path)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: no such catalogue; see {VARIABLE} and --catalog") from error
    except (OSError, ValueError) as error:
        raise OptionError(f"catalogue {path}: {error}") from error
    try:
        return _models(data, path.absolute().parent)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise OptionError(f"catalogue {path}: {what}; docs/catalog.md describes the keys") from error


def _models(data: Mapping[str, Any], base: Path) -> dict[str, Model]:
    return {name: _model(name, entry, base) for name, entry in data["models"].items()}


def _model(name: str, entry: Mapping[str, Any], base: Path) -> Model:
    """Raises ValueError, KeyError or TypeError for an entry that says too little, too much or the impossible."""
    sources = tuple(_source(item, base) for item in entry["sources"])
    pin = entry.get("sha256")  # some tools write it large
    pin = pin.lower() if isinstance(pin, str) else pin
    aliases = entry.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise ValueError(f"model {name}: aliases is a list of texts")
    given = {
        **entry,
        "sources": sources,
        "aliases": tuple(aliases),
        "sha256": pin.lower() if isinstance(pin, str) else pin,
    }
    model = Model(name=name, **given)
    texts = (model.title, model.family, model.variant, model.license, model.file, model.sha256 or "", model.terms or "")
    if not all(isinstance(text, str) for text in texts) or type(model.size) is not int or model.size < 0:
        raise ValueError(f"model {name}: size is a whole number, the other keys are texts")
    if not NAME.fullmatch(name):
        raise ValueError(f"model {name!r}: a name is letters, digits, '.', '_' and '-'")
    if model.form not in get_args(Form) or not sources:
        raise ValueError(f"model {name}: form is one of {', '.join(get_args(Form))}, and there is a source at least")
    if (model.form == "file") != bool(model.file) or (model.file and not _FILE.fullmatch(model.file)):
        raise ValueError(f"model {name}: file is the plain name of a model of the form file, and of no other")
    if model.form == "folder" and model.sha256:
        raise ValueError(f"model {name}: a folder has no sha256")
    if model.sha256 is not None and not _SHA256.fullmatch(model.sha256):
        raise ValueError(f"model {name}: sha256 is {model.sha256!r}; it is 64 hex digits")
    for source in sources:
        if model.form not in source.forms or (isinstance(source, Hub) and (model.form == "file") != bool(source.file)):
            raise ValueError(f"model {name}: {source} cannot deliver a {model.form}")
    return model


def _source(item: Mapping[str, Any], base: Path) -> Source:
    fields = {key: value for key, value in item.items() if key != "kind"}
    kind = SOURCES.get(item["kind"])
    if kind is None:
        raise ValueError(f"source kind {item['kind']!r} is none of {', '.join(SOURCES)}")
    if kind is Wheel:
        members = tuple((str(requirement), str(member)) for requirement, member in fields.pop("members"))
        loose = next((requirement for requirement, _ in members if not _PINNED.fullmatch(requirement)), None)
        if loose is not None or not members:
            raise ValueError(f"{loose!r} is no pinned requirement, NAME==VERSION")
        return Wheel(members, **fields)
    if not all(isinstance(value, str) for value in fields.values()):
        raise ValueError(f"a source of kind {item['kind']} has a value that is no text")
    if kind is Hub and {"", ".", ".."} & set(fields.get("file", "x").split("/")):
        raise ValueError(f"hub file {fields['file']!r} is no path of a file in a repository")
    if kind is Local:
        return Local(base / expanded(fields.pop("path")), **fields)
    return kind(**fields)
