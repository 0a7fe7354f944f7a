"""`dsedge verify`: is a bundle what its manifest says, and does it compute what it should?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

import edge
from edge import store, texts
from edge.bundle import MANIFEST, unknown_keys
from edge.bundle_files import unlisted
from edge.commands import terminal
from edge.commands.complete import BundleArgument
from edge.commands.quality import print_comparisons

_SHOWN = 5  # unlisted files that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """Check a bundle's files and its logits.

    Every hash is recomputed, files that the manifest does not list are named, and the logits are compared with the
    reference on a short text.
    """

    model: BundleArgument
    json: Annotated[bool, typer.Option("--json", help="One line of JSON instead of a table.")] = False

    def execute(self) -> int:
        bundle = edge.verify_bundle(store.resolve(self.model))
        # Not at the top: the reference belongs to the workstation side, which the other commands do without.
        from exporters import parity

        with terminal.progress() as progress:
            progress("compare with the reference", 0.0)
            report = parity.check(bundle)
        files = len(bundle.manifest.files)
        strays = unlisted(bundle.path, bundle.manifest.files, MANIFEST)
        unknown = unknown_keys(texts.read_json(bundle.path / MANIFEST))
        if unknown:
            terminal.note(f"{bundle.path}: its manifest has keys that this version does not read: {', '.join(unknown)}")
        if strays:
            more = f" and {len(strays) - _SHOWN} more" if len(strays) > _SHOWN else ""
            terminal.note(f"{bundle.path}: not listed, so never read: {', '.join(strays[:_SHOWN])}{more}")
        if self.json:
            terminal.print_json(
                {"path": str(bundle.path), "files": files, "unlisted": strays, "parity": asdict(report)}
            )
            return 0
        terminal.say(f"{terminal.visible(str(bundle.path))}: all {files} files have the manifest's sizes and SHA-256")
        print_comparisons(report)
        return 0
