"""Pulls from end to end against servers on this machine: what is recorded, what is left, what is said."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import edge
from edge import pulling, received, store
from edge.bundle import open_bundle
from edge.cli import main
from edge.commands import bars
from edge.errors import NotFoundError, UnsupportedError, UserError
from edge.progress import Progress, Transfer
from edge.sources import hub, web, wheel
from edge.sources.addresses import is_offline, shown
from edge.sources.web import Expected, download
from exporters.bundle_folder import BundleFolder
from runtimes.scripted import write_bundle
from tests.edge.scripted import change_manifest
from tests.edge.servers import Handler, send, serving
from tests.edge.test_catalog import COMMIT, hub_server
from tests.exporters.tiny import tiny_llama

CONTENT = b"weights" * 1000


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.delenv("DSEDGE_CATALOG", raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(web, "_WAIT_S", 0.0)
    monkeypatch.setattr(wheel, "_WAIT_S", 0.0)
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))


def quiet(stage: str, done: float, transfer: Transfer | None = None) -> None:
    assert 0.0 <= done <= 1.0


def left(folder: Path) -> list[str]:
    """The files below a folder, but for locks and the memory of sums."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name not in (".lock", "sums.json"))


def catalogue(folder: Path, url: str, form: str = "file", size: int = len(CONTENT)) -> Path:
    path = folder / "catalog.toml"
    lines = ["[models.demo]", 'title="Demo"', 'family="llama"', 'variant="sub1b"', 'license="MIT"', f'form="{form}"']
    lines += [f"size = {size}", *(['file = "demo.gguf"'] if form == "file" else []), "[[models.demo.sources]]"]
    path.write_text("\n".join([*lines, 'kind = "url"', f"url = {json.dumps(url)}"]))
    return path


# --- N33: a bad first pull is not permanent ---------------------------------------------------------------------------


def test_n33_what_cannot_be_exported_is_not_recorded_and_fetched_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error page without a type, then a file that was cut where no length was told, then the right one."""
    contents = [b"<html>busy</html>", CONTENT[:100], CONTENT]
    exported: list[bytes] = []

    def export(source: Path, out: Path, **_: Any) -> None:
        exported.append(source.read_bytes())
        if exported[-1] != CONTENT:
            raise UserError("no model")
        write_bundle(out, ["yes"])

    monkeypatch.setattr(edge, "export", export, raising=False)
    with serving(lambda handler: send(handler, 200, contents[len(exported)])) as (url, _):
        words = ["pull", "demo", "--catalog", str(catalogue(tmp_path, f"{url}/demo.gguf"))]
        for _attempt in range(2):
            assert main(words) == 2
            assert received.recorded("demo") == {}
        assert main(words) == 0
    assert exported == contents
    assert received.recorded("demo") == {"demo.gguf": hashlib.sha256(CONTENT).hexdigest()}
    assert "not what was received first" not in capsys.readouterr().err


def test_n33_a_web_page_is_refused_by_its_type_and_nothing_of_it_stays(tmp_path: Path) -> None:
    page = b"<html>please sign in</html>"
    with serving(lambda handler: send(handler, 200, page, Content_Type="text/html; charset=utf-8")) as (url, _):
        with pytest.raises(UserError, match="the server sent a web page, not a file"):
            download(url, tmp_path / "demo.gguf", Expected(), quiet)
        # With a hash it is the hash that counts, not what the server calls it.
        download(url, tmp_path / "page", Expected(len(page), hashlib.sha256(page).hexdigest()), quiet)
    assert left(tmp_path) == ["page"]


def test_n33_a_bundle_whose_copy_fails_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = write_bundle(tmp_path / "site" / "demo.dsedge", ["hi"]).path

    def fail(*_: object) -> None:
        raise UserError("no")

    def answer(handler: Handler) -> None:
        path = bundle / handler.path.rpartition("/")[2]
        send(handler, 200, path.read_bytes()) if path.is_file() else send(handler, 404, b"")

    with serving(answer) as (url, _):
        words = ["pull", "demo", "--catalog", str(catalogue(tmp_path, f"{url}/demo.dsedge", "bundle"))]
        with monkeypatch.context() as patch:
            patch.setattr(pulling, "copy_bundle", fail)
            assert main(words) == 2
        assert received.recorded("demo") == {}
        assert main(words) == 0
    assert list(received.recorded("demo")) == ["manifest.json"]


# --- N34: limits while downloading ------------------------------------------------------------------------------------


def endless(handler: Handler) -> None:
    """A body without a length that goes on until nobody takes it any more."""
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(bytes(1 << 16))
    except OSError:
        handler.close_connection = True


@pytest.mark.parametrize("pinned", [False, True])
def test_n34_an_endless_manifest_is_given_up_and_nothing_is_left(
    pinned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("edge.download.MANIFEST_LIMIT", 1 << 20)

    def answer(handler: Handler) -> None:
        send(handler, 404, b"") if handler.path.endswith(".sig") else endless(handler)

    with serving(answer) as (url, seen):
        path = catalogue(tmp_path, f"{url}/demo.dsedge", "bundle")
        if pinned:
            path.write_text(path.read_text().replace("size =", f'sha256 = "{"0" * 64}"\nsize ='))
        assert main(["pull", "demo", "--catalog", str(path)]) == 2
        assert len(seen) == 2
    assert "delivers more than the 1048576 bytes that are expected" in capsys.readouterr().err
    assert left(tmp_path / "cache") == []


@pytest.mark.parametrize("length", [None, 10**15])
def test_n34_an_endless_file_that_is_not_pinned(
    length: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("edge.download._SLACK", 0)

    def answer(handler: Handler) -> None:
        if length is None:
            endless(handler)
        else:
            send(handler, 200, b"x", Content_Length=str(length))

    with serving(answer) as (url, seen):
        assert main(["pull", "demo", "--catalog", str(catalogue(tmp_path, f"{url}/demo.gguf"))]) == 2
        assert len(seen) == 1
    assert "14000" in capsys.readouterr().err  # twice the catalogue's size
    assert left(tmp_path / "cache") == []


def test_n34_a_manifest_that_lists_more_than_the_model_can_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = write_bundle(tmp_path / "site" / "demo.dsedge", ["hi"]).path
    change_manifest(bundle, lambda data: data["files"]["script.json"].update(size=10**15))
    with serving(lambda handler: send(handler, 200, (bundle / "manifest.json").read_bytes())) as (url, seen):
        assert main(["pull", "demo", "--catalog", str(catalogue(tmp_path, f"{url}/d.dsedge", "bundle"))]) == 2
        assert [path for path, _ in seen] == ["/d.dsedge/manifest.sig", "/d.dsedge/manifest.json"]
    assert "its files have 1000000" in capsys.readouterr().err
    assert left(tmp_path / "cache") == []


def test_n34_a_password_in_an_address_is_sent_and_never_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    def answer(handler: Handler) -> None:
        asked.append(handler.headers.get("Authorization"))
        send(handler, 403, b"")

    with serving(answer) as (url, _):
        address = url.replace("//", "//me:s3cret%21@") + "/demo.gguf?token=t0psecret"
        assert main(["pull", "demo", "--catalog", str(catalogue(tmp_path, address))]) == 2
    said = capsys.readouterr().err
    assert "the server answered 403" in said
    assert "s3cret" not in said
    assert "t0psecret" not in said
    assert asked == ["Basic bWU6czNjcmV0IQ=="]  # printf 'me:s3cret!' | base64
    for form in ("folder", "bundle"):  # errors of the catalogue itself
        path = catalogue(tmp_path, "ftp://me:s3cret@models.example/x", "file")
        path.write_text(path.read_text().replace('form="file"', f'form="{form}"'))
        assert main(["pull", "demo", "--catalog", str(path)]) == 2
        assert "s3cret" not in capsys.readouterr().err


def test_n34_the_password_does_not_follow_a_redirect(tmp_path: Path) -> None:
    asked: list[str | None] = []

    def other(handler: Handler) -> None:
        asked.append(handler.headers.get("Authorization"))
        send(handler, 200, CONTENT)

    with serving(other) as (elsewhere, _):
        with serving(lambda handler: send(handler, 302, b"", Location=elsewhere)) as (url, seen):
            download(url.replace("//", "//me:s3cret@"), tmp_path / "x", Expected(), quiet)
        assert seen[0][1]["authorization"].startswith("Basic ")
    assert asked == [None]


@pytest.mark.parametrize(("url", "text"), [
    ("https://me:pw@models.example:8443/a/b?sig=x#y", "https://models.example:8443/a/b?…"),
    ("https://models.example/a", "https://models.example/a"),
    ("socks5://me:pw@127.0.0.1:1080", "socks5://127.0.0.1:1080"),
    ("https://me:p@w@models.example/a", "https://models.example/a"),
    ("https://me:pw@[::1/a?b", "[::1/a"),
])  # fmt: skip
def test_n34_what_is_shown_of_an_address(url: str, text: str) -> None:
    assert shown(url) == text


# --- N10: proxies -----------------------------------------------------------------------------------------------------


@contextmanager
def listening() -> Iterator[tuple[int, list[bytes]]]:
    """A port that takes connections, and what arrives there first."""
    got: list[bytes] = []
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0.2)
        yield server.getsockname()[1], got
        try:
            with server.accept()[0] as connection:
                got.append(connection.recv(100))
        except TimeoutError:
            pass


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("scheme", ["socks5", "socks5h", "socks4", "SOCKS5"])
def test_n10_a_socks_proxy_is_named_as_unsupported_and_gets_nothing(
    scheme: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening() as (port, got):
        monkeypatch.setenv(variable, f"{scheme}://me:pw@127.0.0.1:{port}")
        with pytest.raises(
            UnsupportedError, match=rf"the proxy {scheme.lower()}://127\.0\.0\.1:{port} for http"
        ) as caught:
            download("http://models.example/x", tmp_path / "x", Expected(), quiet)
        assert "name an http proxy in HTTP_PROXY, or the host in NO_PROXY" in str(caught.value)
    assert got == []
    with serving(lambda handler: send(handler, 200, CONTENT)) as (url, _):  # this machine needs no proxy
        download(url, tmp_path / "x", Expected(), quiet)


def test_n10_the_proxy_for_everything_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda handler: send(handler, 200, CONTENT)) as (proxy, seen):
        monkeypatch.setenv("all_proxy", proxy)
        download("http://models.example/x", tmp_path / "x", Expected(), quiet)
        assert [path for path, _ in seen] == ["http://models.example/x"]
        monkeypatch.setenv("no_proxy", "models.example")
        with pytest.raises(UserError, match="no network"):
            download("http://models.example/x", tmp_path / "y", Expected(), quiet)


# --- no network: one line at once -------------------------------------------------------------------------------------


def test_without_a_network_a_url_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def look_up(host: str, *_: object, **__: object) -> None:
        asked.append(host)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(UserError, match=r"^no network: models\.example cannot be reached \(.*name resolution\)$"):
        download("https://models.example/x", tmp_path / "x", Expected(), quiet)
    assert asked == ["models.example"]
    with pytest.raises(UserError, match="no network: the hub cannot be reached"):
        hub.look("org/demo")


def test_a_failure_for_want_of_a_network_is_known_by_its_cause() -> None:
    inner = RuntimeError("wrapped")
    inner.__cause__ = socket.gaierror(-2, "Name or service not known")
    assert is_offline(inner)
    assert is_offline(OSError(101, "Network is unreachable"))
    assert not is_offline(ConnectionRefusedError(111, "Connection refused"))
    loop = RuntimeError()
    loop.__cause__, loop.__context__ = loop, loop
    assert not is_offline(loop)


def pip_that(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> Path:
    """A Python whose pip is a shell script; the file in which it notes its runs."""
    python, runs = folder / "python", folder / "runs"
    python.write_text(f'#!/bin/sh\necho "$PIP_RETRIES $@" >> {runs}\n{script}\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.delenv("PIP_RETRIES", raising=False)
    return runs


def test_without_a_network_pip_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warning = (
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NameResolutionError(\"Failed to resolve x\")'"
    )
    runs = pip_that(
        monkeypatch, tmp_path, f"cat >&2 <<'X'\n{warning}\nERROR: No matching distribution found\nX\nexit 1"
    )
    with pytest.raises(UserError, match=r"^no network: the package index cannot be reached$"):
        wheel.download([("demo==1.0", "data")], tmp_path / "out", 1, quiet)
    assert len(runs.read_text().splitlines()) == 1
    assert runs.read_text().startswith("1 -m pip download")


def test_a_connection_that_breaks_off_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = pip_that(monkeypatch, tmp_path, 'echo "ERROR: Connection broken: IncompleteRead" >&2; exit 2')
    with pytest.raises(UserError, match=r"^Connection broken: IncompleteRead$"):
        wheel.download([("demo==1.0", "data")], tmp_path / "out", 1, quiet)
    assert len(runs.read_text().splitlines()) == 3


# --- how far it is ----------------------------------------------------------------------------------------------------


def test_pips_progress_is_told_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = "\n".join(f'echo "Progress {done} of 98000000"' for done in (0, 24_500_000, 98_000_000))
    pip_that(monkeypatch, tmp_path, f"echo Collecting demo==1.0\n{steps}\nexit 1")
    seen: list[tuple[str, float, Transfer | None]] = []
    with pytest.raises(UserError):
        wheel.download([("demo==1.0", "data")], tmp_path / "out", 1, lambda *told: seen.append(told))  # type: ignore[arg-type]
    assert seen[1:] == [
        ("download demo==1.0", share, Transfer(int(98e6 * share), 98_000_000)) for share in (0.0, 0.25, 1.0)
    ]


def test_pip_itself_tells_how_far_a_wheel_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pip of this Python, against an index on this machine."""
    name, content = "demo_model-1.0-py3-none-any.whl", bytes(range(256)) * 8000
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("demo_model/demo.gguf", content)
        archive.writestr("demo_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo-model\nVersion: 1.0\n")
        archive.writestr("demo_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("demo_model-1.0.dist-info/RECORD", "")
    data = (tmp_path / name).read_bytes()

    def answer(handler: Handler) -> None:
        if handler.path.endswith(".whl"):
            send(handler, 200, data)
        else:
            send(handler, 200, f'<a href="/files/{name}">{name}</a>'.encode(), Content_Type="text/html")

    seen: list[Transfer | None] = []

    def note(stage: str, done: float, transfer: Transfer | None = None, /) -> None:
        if stage.startswith("download"):
            seen.append(transfer)

    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    with serving(answer) as (url, _):
        monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple")
        wheel.download([("demo-model==1.0", "demo_model/demo.gguf")], tmp_path / "out", 1, note)
    assert (tmp_path / "out").read_bytes() == content
    assert seen[-1] == Transfer(len(data), len(data))


def test_every_download_tells_bytes(tmp_path: Path) -> None:
    seen: list[Transfer | None] = []

    def note(stage: str, done: float, transfer: Transfer | None = None, /) -> None:
        assert stage == "download x"
        seen.append(transfer)

    with serving(lambda handler: send(handler, 200, CONTENT)) as (url, _):
        download(url, tmp_path / "x", Expected(), note)
    assert seen[-1] == Transfer(7000, 7000)


@pytest.mark.parametrize(("moved", "speed", "left", "text"), [
    (Transfer(45_200_000, 98_362_432), 5.12e6, 11.2, "45.2/98.4 MB 5.1 MB/s 0:11"),
    (Transfer(1_500_000_000, 16_100_000_000), 999_999.0, 14_600.0, "1.5/16.1 GB 1000.0 kB/s 4:03:20"),
    (Transfer(0, 500), None, None, "0/500 B"),
    (Transfer(2_000_000, None), 1000.0, None, "2.0 MB 1.0 kB/s"),
    (None, 3.0, 5.0, "46%"),
])  # fmt: skip
def test_figures(moved: Transfer | None, speed: float | None, left: float | None, text: str) -> None:
    assert bars.figures(moved, 46.4, speed, left) == text


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_line_that_moves_fits_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", out)
    with bars.moving() as show:
        show("download a-model-with-quite-a-long-name==1.0", 0.0, Transfer(10_000_000, 98_000_000))
        show("quantize", 0.5)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    lines = [line for line in re.split(r"[\r\n]+", text) if line.strip()]
    assert max(len(line.rstrip()) for line in lines) <= width
    if width >= 40:
        assert any("10.0/98.0 MB" in line and line.startswith("download") for line in lines)
        assert any("50%" in line and line.startswith("quantize") for line in lines)


def test_a_pipe_gets_a_line_for_each_quarter(capsys: pytest.CaptureFixture[str]) -> None:
    with bars.lines() as show:
        for done in range(0, 98_000_001, 7_000_000):
            show("download x", done / 98e6, Transfer(done, 98_000_000))
        show("check x", 0.0, Transfer(0, 500))
        show("check x", 1.0, Transfer(500, 500))
        show("quantize", 0.0)
        show("quantize", 0.7)
    assert capsys.readouterr().err.splitlines() == [
        "download x (98.0 MB)", "download x: 25%", "download x: 50%", "download x: 75%", "download x: 100%",
        "check x (500 B)", "quantize",
    ]  # fmt: skip


# --- repositories of the hub ------------------------------------------------------------------------------------------


@contextmanager
def hub_of(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    asked: list[str] = []

    def answer(handler: Handler) -> None:
        asked.append(handler.path)
        hub_server(handler, files)

    with serving(answer) as (url, _):
        monkeypatch.setenv("HF_ENDPOINT", url)
        yield asked


def test_a_repository_of_the_hub_is_fetched_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tiny_llama(tmp_path / "source")
    files = {path.name: path.read_bytes() for path in source.iterdir()}
    with hub_of({**files, "pytorch_model.bin": b"a pickle"}, monkeypatch) as asked:
        assert main(["pull", "org/demo"]) == 0
        assert not any("pytorch_model" in path for path in asked)
        assert all(COMMIT in path for path in asked if "/resolve/" in path)
        count = len(asked)
        assert main(["pull", "Org/Demo"]) == 0  # it is here
        assert len(asked) == count
    assert store.names() == ["org--demo"]
    opened = open_bundle(store.resolve("org/demo"))
    assert (opened.manifest.name, opened.spec.family) == ("org--demo", "llama")
    assert "org--demo: org/demo, mit license, now in" in capsys.readouterr().err
    assert set(received.recorded("org--demo")) == set(files)


def test_run_pulls_a_repository_that_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(edge, "export", lambda source, out, **_: write_bundle(out, ["Paris."]), raising=False)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    with hub_of({"config.json": b"{}", "model.safetensors": b"x"}, monkeypatch) as asked:
        assert main(["run", "org/demo", "hi", "--runtime", "scripted"]) == 0
        count = len(asked)
        assert main(["run", "Org/Demo", "hi", "--runtime", "scripted"]) == 0
    assert capsys.readouterr().out == "Paris.\nParis.\n"
    assert (len(asked), store.names()) == (count, ["org--demo"])


def test_a_gguf_file_of_a_repository(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    exported: list[tuple[str, bytes]] = []

    def export(source: Path, out: Path, *, name: str, recipe: str | None, **_: Any) -> None:
        assert recipe is None
        exported.append((name, source.read_bytes()))
        write_bundle(out, ["yes"])

    monkeypatch.setattr(edge, "export", export, raising=False)
    files = {"Demo-Q4_0.gguf": b"four", "Demo-Q8_0.gguf": b"eight", "README.md": b"x"}
    with hub_of(files, monkeypatch):
        assert main(["pull", "org/demo"]) == 2
        several = "holds several GGUF files; name one: org/demo/Demo-Q4_0.gguf, org/demo/Demo-Q8_0.gguf"
        assert several in capsys.readouterr().err
        assert main(["pull", "org/demo/Demo-Q8_0.gguf"]) == 0
        assert main(["pull", "org/demo/Demo-Q2_K.gguf"]) == 2
        assert "org/demo: holds no Demo-Q2_K.gguf" in capsys.readouterr().err
        del files["Demo-Q8_0.gguf"]
        assert main(["pull", "org/demo"]) == 0
    assert exported == [("org--demo--Demo-Q8_0", b"eight"), ("org--demo", b"four")]


def test_a_repository_that_is_not_there_or_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with hub_of({"README.md": b"x"}, monkeypatch):
        with pytest.raises(NotFoundError, match="org/demo: holds neither safetensors nor GGUF files"):
            pulling.pull("org/demo", quiet)
        with pytest.raises(UserError, match=r"[Rr]epository|404"):
            pulling.pull("org/absent", quiet)
    assert store.names() == []


def test_a_model_of_an_older_format_is_pulled_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = write_bundle(store.place("demo"), ["old"]).path
    data = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**data, "format": 1, "spec": {"heads": 1}}))
    monkeypatch.setattr(edge, "export", lambda source, out, **_: _publish(out), raising=False)
    with serving(lambda handler: send(handler, 200, CONTENT)) as (url, _):
        assert main(["pull", "demo", "--catalog", str(catalogue(tmp_path, f"{url}/demo.gguf"))]) == 0
    assert open_bundle(path).read_text("script.json") is not None


def _publish(out: Path) -> None:
    with BundleFolder(out) as folder:
        folder.path.rmdir()
        write_bundle(folder.path, ["new"])
        folder.commit()


def test_importing_the_bars_needs_a_terminal_only_when_used() -> None:
    program = "import sys, edge.commands.terminal; sys.exit('rich' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_progress_is_what_the_protocol_says() -> None:
    found: Progress = quiet
    found("x", 0.5)
    assert Transfer(5, None).share == 0.0
    assert Transfer(7, 5).share == 1.0
