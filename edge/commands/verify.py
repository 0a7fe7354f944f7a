"""`dsedge verify`: is a bundle what its manifest says, and does it compute what it should?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

import edge
from edge import artefacts, store, texts
from edge.bundle import MANIFEST, Bundle, unknown_keys
from edge.bundle_files import unlisted
from edge.commands import signature, terminal
from edge.commands.complete import BundleArgument
from edge.commands.quality import print_comparisons
from edge.errors import OptionError
from edge.paths import expanded
from edge.progress import Progress

_SHOWN = 5  # unlisted files that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """Check a bundle's files and its logits.

    Every hash is recomputed, files that the manifest does not list are named, and the logits are compared with the
    reference on a short text. With --pubkey, the signature is checked before anything else. With --target, what that
    target made is read back and compared with the payload, and its runtimes alone are compared with the reference.
    """

    model: BundleArgument
    pubkey: Annotated[
        Path | None,
        typer.Option(metavar="PUB.pem", help="The public key that must have signed the bundle.", parser=expanded),
    ] = None
    target: Annotated[
        str | None, typer.Option(metavar="coreml", help="Check what this target made, on any machine.")
    ] = None
    json: Annotated[bool, typer.Option("--json", help="One line of JSON instead of a table.")] = False

    def execute(self) -> int:
        path = store.resolve(self.model)
        key = None if self.pubkey is None else signature.check(path, signature.read_public(self.pubkey), self.pubkey)
        bundle = edge.verify_bundle(path)
        # Not at the top: the reference belongs to the workstation side, which the other commands do without.
        from exporters import parity

        with terminal.progress() as progress:
            checked = None if self.target is None else _check_target(bundle, self.target, progress)
            progress("compare with the reference", 0.0)
            report = parity.check(bundle, self.target)
        files = len(bundle.manifest.files)
        strays = unlisted(bundle.path, bundle.manifest.files, MANIFEST)
        unknown = unknown_keys(texts.read_json(bundle.path / MANIFEST))
        if unknown:
            terminal.note(f"{bundle.path}: its manifest has keys that this version does not read: {', '.join(unknown)}")
        if key is None and signature.is_signed(bundle.path):
            terminal.note(f"{bundle.path}: has a signature; --pubkey checks whose")
        if strays:
            more = f" and {len(strays) - _SHOWN} more" if len(strays) > _SHOWN else ""
            terminal.note(f"{bundle.path}: not listed, so never read: {', '.join(strays[:_SHOWN])}{more}")
        if self.json:
            terminal.print_json(
                {
                    "path": str(bundle.path),
                    "files": files,
                    "unlisted": strays,
                    "signed_by": key,
                    "target": checked,
                    "parity": asdict(report),
                }
            )
            return 0
        if key is not None:
            terminal.say(f"{terminal.visible(str(bundle.path))}: signed with the given key (SHA-256 {key})")
        terminal.say(f"{terminal.visible(str(bundle.path))}: all {files} files have the manifest's sizes and SHA-256")
        if checked is not None:
            terminal.say(checked)
        print_comparisons(report)
        return 0


def _check_target(bundle: Bundle, target: str, progress: Progress) -> str:
    """What the check of a target's artefact says. Raises OptionError for a target that the bundle lacks."""
    if target not in bundle.manifest.artefacts:
        raise OptionError(
            f"{bundle.path}: holds nothing of the target {target!r}; it has {', '.join(bundle.manifest.artefacts)}"
        )
    progress(f"check {target}", 0.0)
    return artefacts.find(target).check(bundle)
