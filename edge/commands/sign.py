"""`dsedge sign`: say by a key whose bundle it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import edge
from edge import store
from edge.bundle_files import SIGNATURE
from edge.commands import signature, terminal
from edge.commands.complete import BundleArgument
from edge.paths import expanded


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """Sign a bundle with an Ed25519 key.

    Every hash is recomputed first. The signature is over the manifest, which vouches for the other files, and is put
    beside it, in manifest.sig; `dsedge verify --pubkey` checks it.
    """

    model: BundleArgument
    key: Annotated[
        Path,
        typer.Option(
            metavar="KEY.pem", help="The private key; `openssl genpkey -algorithm ed25519` makes one.", parser=expanded
        ),
    ]

    def execute(self) -> int:
        key = signature.read_private(self.key)
        bundle = edge.verify_bundle(store.resolve(self.model))
        named = signature.sign(bundle.path, key)
        terminal.say(
            f"{terminal.visible(str(bundle.path / SIGNATURE))}: signed; the SHA-256 of the public key is {named}"
        )
        return 0
