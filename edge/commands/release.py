"""A release set: the variants of a model exported in one run, with a catalogue that names them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import edge
from edge import store
from edge.bundle import MANIFEST, Bundle
from edge.errors import NotFoundError, OptionError, StorageError
from edge.files import write_whole
from edge.progress import Progress
from edge.sums import sha256

if TYPE_CHECKING:
    from edge.exporting import ExportOptions

CATALOG = "catalog.toml"
UNKNOWN_LICENSE = "see the source model"
# A comma that a further variant follows; other commas belong to a path.
_BETWEEN = re.compile(r",(?=[A-Za-z0-9._-]+=)")


def parse_variants(texts: Sequence[str]) -> dict[str, str]:
    """`RECIPE=SOURCE` items, also several in one text with commas between them, by recipe. Raises OptionError."""
    variants: dict[str, str] = {}
    for item in [item for text in texts for item in _BETWEEN.split(text)]:
        recipe, _, source = item.partition("=")
        if not recipe or not source:
            raise OptionError(f"variant {item!r} is not RECIPE=SOURCE, such as sub1b=model.gguf")
        if recipe in variants:
            raise OptionError(f"variant {recipe} is named twice; a release has one source a recipe")
        variants[recipe] = source
    return variants


def check_free(target: Path, *, force: bool) -> None:
    """Raise OptionError for a bundle that is there already, unless it is to be replaced."""
    if not force and target.is_dir() and any(target.iterdir()):
        raise OptionError(f"{target}: is there already; --force replaces a bundle")


def release(
    variants: Mapping[str, str],
    folder: Path,
    options: ExportOptions,
    *,
    name: str,
    terms: str | None,
    progress: Progress,
) -> dict[str, Bundle]:
    """Export every variant to `folder/NAME-RECIPE.dsedge`, then write `folder/catalog.toml`; the bundles by model name.

    `options` are those of each export but for its recipe, name and progress.

    Recipes, sources and targets are looked at first, before hours of exporting. A variant that fails then leaves the
    others, and an earlier catalogue, as they are. Raises what `edge.export` raises.
    """
    # Not at the top: recipes belong to the workstation side, which most commands do without.
    from exporters.quant import recipe as recipes

    store.check_name(name)
    for recipe, source in variants.items():
        if not Path(source).exists():
            raise NotFoundError(f"{source}: no such file or folder for the variant {recipe}")
        recipes.load(recipe)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be made: {error.strerror}") from error
    bundles: dict[str, Bundle] = {}
    entries: list[str] = []
    for recipe, source in variants.items():
        model = store.check_name(f"{name}-{recipe}")
        own: ExportOptions = {**options, "recipe": recipe, "name": model, "progress": _named(recipe, progress)}
        bundle = edge.export(source, folder / (model + store.SUFFIX), **own)
        bundles[model] = bundle
        entries.append(_entry(model, f"{name} ({recipe})", recipe, bundle, terms or UNKNOWN_LICENSE))
    path = folder / CATALOG
    try:
        write_whole(path, "\n".join(entries), mode=0o666)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from error
    return bundles


def _named(recipe: str, progress: Progress) -> Callable[[str, float], None]:
    """The progress of a variant's export, its stages named after its recipe."""
    return lambda stage, done: progress(f"{recipe}: {stage}", done)


def _entry(model: str, title: str, recipe: str, bundle: Bundle, terms: str) -> str:
    """A model of the form "bundle", whose path is that of the folder that the catalogue lies in."""
    size = sum(file.size for file in bundle.manifest.files.values())
    fields = {
        "title": title,
        "family": bundle.spec.family,
        "variant": recipe,
        "license": terms,
        "form": "bundle",
        "sha256": sha256(bundle.path / MANIFEST),
    }
    lines = [f"[models.{_text(model)}]", *(f"{key} = {_text(value)}" for key, value in fields.items())]
    lines += [f"size = {size}", "", f"[[models.{_text(model)}.sources]]", 'kind = "path"']
    lines += [f"path = {_text(model + store.SUFFIX)}", ""]
    return "\n".join(lines)


def _text(value: str) -> str:
    """A basic string of TOML: its escapes are those of JSON, and DEL is one of them."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
