"""`dsedge sign` and `dsedge verify --pubkey`: what a signature vouches for, and what is said where it does not."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import edge
from edge.bundle_files import foreign, unlisted
from edge.cli import main
from exporters.bundle_copy import copy_bundle
from exporters.export import export
from tests.edge.scripted import change_manifest
from tests.exporters.tiny import tiny_llama

Pem = serialization.Encoding.PEM


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sign")
    return export(tiny_llama(folder / "tiny"), folder / "tiny.dsedge", targets=()).path


@pytest.fixture
def bundle(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "tiny.dsedge"))


def keys(folder: Path, name: str = "key") -> tuple[Path, Path]:
    """A private and a public key in PEM."""
    key = Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    plain = serialization.NoEncryption()
    private.write_bytes(key.private_bytes(Pem, serialization.PrivateFormat.PKCS8, plain))
    public.write_bytes(key.public_key().public_bytes(Pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public


def test_a_signed_bundle_is_verified_and_stays_a_bundle(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private, public = keys(tmp_path)
    assert main(["sign", str(bundle), "--key", str(private)]) == 0
    assert main(["verify", str(bundle), "--pubkey", str(public)]) == 0
    assert "signed with the given key" in capsys.readouterr().out
    assert main(["verify", str(bundle), "--json"]) == 0
    done = capsys.readouterr()
    assert json.loads(done.out)["signed_by"] is None
    assert json.loads(done.out)["unlisted"] == []
    assert "has a signature; --pubkey checks whose" in done.err
    # The signature travels with a copy, and an export may replace a signed bundle.
    copy_bundle(bundle, tmp_path / "copy.dsedge", lambda stage, done, transfer=None: None)
    assert main(["verify", str(tmp_path / "copy.dsedge"), "--pubkey", str(public)]) == 0
    assert foreign(bundle, "manifest.json") == ""
    assert unlisted(bundle, edge.open_bundle(bundle).manifest.files, "manifest.json") == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")
def test_a_key_of_openssl_signs_and_openssl_verifies(bundle: Path, tmp_path: Path) -> None:
    private, public, raw = tmp_path / "k.pem", tmp_path / "k.pub.pem", tmp_path / "raw.sig"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    assert main(["sign", str(bundle), "--key", str(private)]) == 0
    assert main(["verify", str(bundle), "--pubkey", str(public)]) == 0
    stored = json.loads((bundle / "manifest.sig").read_text(encoding="utf-8"))
    raw.write_bytes(base64.b64decode(stored["signature"]))
    line = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin", "-sigfile", raw]
    done = subprocess.run([*line, "-in", bundle / "manifest.json"], capture_output=True, text=True, check=False)
    assert "Signature Verified Successfully" in done.stdout, done


def resealed(bundle: Path) -> None:
    change_manifest(bundle, lambda manifest: manifest["tokenizer"].update(eos=[3]))


def other_key(bundle: Path) -> None:
    private, _ = keys(bundle.parent, "other")
    assert main(["sign", str(bundle), "--key", str(private)]) == 0


def claimed(bundle: Path) -> None:
    """Another key's signature under the name of the right one."""
    path = bundle / "manifest.sig"
    before = json.loads(path.read_text(encoding="utf-8"))
    other_key(bundle)
    after = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**after, "key": before["key"]}), encoding="utf-8")


def damaged(bundle: Path) -> None:
    (bundle / "manifest.sig").write_text('{"key": "00", "signature": "*"}', encoding="utf-8")


def linked(bundle: Path) -> None:
    (bundle / "manifest.sig").rename(bundle.parent / "away.sig")
    (bundle / "manifest.sig").symlink_to(bundle.parent / "away.sig")


def large(bundle: Path) -> None:
    (bundle / "manifest.sig").write_text(" " * 5000, encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (resealed, "its signature is not of this manifest"),
        (claimed, "its signature is not of this manifest"),
        (other_key, "is signed with another key (SHA-256 "),
        (lambda bundle: (bundle / "manifest.sig").unlink(), "is not signed; it holds no manifest.sig"),
        (damaged, "is no signature that `dsedge sign` writes"),
        (linked, "is a link, or larger than a signature can be"),
        (large, "is a link, or larger than a signature can be"),
        (lambda bundle: (bundle / "tokenizer.json").write_text("{}"), "bytes where the manifest says"),
    ],
)
def test_what_the_key_did_not_sign_is_refused(
    change: Callable[[Path], object], told: str, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private, public = keys(tmp_path)
    assert main(["sign", str(bundle), "--key", str(private)]) == 0
    change(bundle)
    capsys.readouterr()
    assert main(["verify", str(bundle), "--pubkey", str(public)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert told in lines[0]


def test_a_damaged_bundle_is_not_signed(bundle: Path, tmp_path: Path) -> None:
    private, _ = keys(tmp_path)
    (bundle / "tokenizer.json").write_text("{}")
    assert main(["sign", str(bundle), "--key", str(private)]) == 2
    assert not (bundle / "manifest.sig").exists()


def test_keys_that_are_none(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private, public = keys(tmp_path)
    curve, locked = tmp_path / "curve.pem", tmp_path / "locked.pem"
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    curve.write_bytes(ec.generate_private_key(ec.SECP256R1()).private_bytes(Pem, pkcs8, plain))
    secret = serialization.BestAvailableEncryption(b"word")
    locked.write_bytes(Ed25519PrivateKey.generate().private_bytes(Pem, pkcs8, secret))
    for path, told in (
        (public, "holds no private key in PEM"), (curve, "is no Ed25519 key"), (locked, "the key is encrypted"),
        (tmp_path / "none.pem", "cannot be read: No such file"),
    ):  # fmt: skip
        assert main(["sign", str(bundle), "--key", str(path)]) == 2
        assert told in capsys.readouterr().err
    assert main(["verify", str(bundle), "--pubkey", str(private)]) == 2
    assert "holds no public key in PEM" in capsys.readouterr().err
    assert not (bundle / "manifest.sig").exists()


def test_without_the_package_the_error_says_what_to_install(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    private, _ = keys(tmp_path)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    assert main(["sign", str(bundle), "--key", str(private)]) == 2
    assert "pip install 'dsedge[sign]'" in capsys.readouterr().err
