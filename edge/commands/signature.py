"""A bundle's signature: Ed25519 (RFC 8032) over the bytes of its manifest, which vouches for every other file.

It lies beside the manifest in `manifest.sig`, a JSON object: "signature" in base64, and "key", the SHA-256 of the raw
public key, by which a wrong key is told from a changed manifest. Only the signature itself is trusted.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from edge import texts
from edge.bundle import MANIFEST
from edge.bundle_files import SIGNATURE, SIGNATURE_LIMIT
from edge.errors import BundleError, NotFoundError, OptionError, StorageError, UnsupportedError
from edge.files import write_whole

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_SHOWN = 16  # digits of a key's SHA-256 in messages


def read_private(path: Path) -> Ed25519PrivateKey:
    """The private key in a PEM file. Raises UnsupportedError without the package, NotFoundError, OptionError."""
    _need_library()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    data = _read(path)
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except TypeError as error:
        raise OptionError(
            f"{path}: the key is encrypted; decrypt it: openssl pkey -in {path} -out PLAIN.pem"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise OptionError(
            f"{path}: holds no private key in PEM; make one: openssl genpkey -algorithm ed25519 -out KEY.pem"
        ) from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise OptionError(f"{path}: is no Ed25519 key; make one: openssl genpkey -algorithm ed25519 -out KEY.pem")
    return key


def read_public(path: Path) -> Ed25519PublicKey:
    """The public key in a PEM file. Raises UnsupportedError without the package, NotFoundError, OptionError."""
    _need_library()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    data = _read(path)
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise OptionError(
            f"{path}: holds no public key in PEM; take it from the private one: openssl pkey -in KEY.pem -pubout"
        ) from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise OptionError(f"{path}: is no Ed25519 key")
    return key


def sign(folder: Path, key: Ed25519PrivateKey) -> str:
    """Write a bundle's signature; the SHA-256 of the public key. Raises StorageError."""
    named = _digest(key.public_key())
    signature = base64.b64encode(key.sign((folder / MANIFEST).read_bytes())).decode()
    path = folder / SIGNATURE
    try:
        write_whole(path, json.dumps({"key": named, "signature": signature}) + "\n", mode=0o666)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from error
    return named


def check(folder: Path, key: Ed25519PublicKey, given: Path) -> str:
    """The SHA-256 of the key that a bundle is signed with. Raises BundleError unless it is `key`, from `given`."""
    from cryptography.exceptions import InvalidSignature

    named, signature = _stored(folder)
    own = _digest(key)
    if named != own:
        raise BundleError(
            f"{folder}: is signed with another key (SHA-256 {named[:_SHOWN]}…) than that of {given} ({own[:_SHOWN]}…)"
        )
    try:
        key.verify(signature, (folder / MANIFEST).read_bytes())
    except InvalidSignature as error:
        raise BundleError(
            f"{folder}: its signature is not of this manifest: {MANIFEST} or {SIGNATURE} was changed after signing; "
            "do not use it"
        ) from error
    except OSError as error:
        raise BundleError(f"{folder / MANIFEST}: cannot be read: {error.strerror}") from error
    return own


def is_signed(folder: Path) -> bool:
    return (folder / SIGNATURE).exists()


def _stored(folder: Path) -> tuple[str, bytes]:
    path = folder / SIGNATURE
    try:
        if path.is_symlink() or path.stat().st_size > SIGNATURE_LIMIT:
            raise BundleError(f"{path}: is a link, or larger than a signature can be")
        data = texts.read_json(path)
        return str(data["key"]), base64.b64decode(data["signature"], validate=True)
    except FileNotFoundError as error:
        raise BundleError(f"{folder}: is not signed; it holds no {SIGNATURE}") from error
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{path}: is no signature that `dsedge sign` writes; it was changed or damaged") from error


def _digest(key: Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise NotFoundError(f"key {path}: cannot be read: {error.strerror}") from error


def _need_library() -> None:
    try:
        import cryptography.hazmat.primitives.asymmetric  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(
            "signatures need the package cryptography, which is not installed: pip install 'dsedge[sign]'"
        ) from error
