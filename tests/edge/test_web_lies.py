"""Servers that say one thing and send another: nothing of it may be taken for the file, whether it is pinned or not."""

from __future__ import annotations

import hashlib
import socket
import struct
import time
from pathlib import Path

import pytest

from edge.errors import UserError
from edge.sources import web
from edge.sources.web import Expected, download
from tests.edge.servers import Handler, send, serving
from tests.edge.test_web import CONTENT, HALF, OTHER, PINNED, begin, names, quiet


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_WAIT_S", 0.0)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def ranged(handler: Handler, most: int, *, tag: str = '"v1"', total: str = str(len(CONTENT))) -> None:
    """The file, or of a range its first `most` bytes alone, with a Content-Length that fits them."""
    wanted = handler.headers.get("Range")
    if not wanted:
        send(handler, 200, CONTENT, ETag=tag)
        return
    start = int(wanted.removeprefix("bytes=").removesuffix("-"))
    body = CONTENT[start : start + most]
    send(handler, 206, body, ETag=tag, Content_Range=f"bytes {start}-{start + len(body) - 1}/{total}")


@pytest.mark.parametrize("expected", [PINNED, Expected()])
def test_u5_a_range_that_ends_early_is_not_the_end(target: Path, expected: Expected) -> None:
    begin(target, CONTENT[:HALF], '"v1"')
    with serving(lambda handler: ranged(handler, HALF // 2)) as (url, seen):
        download(url, target, expected, quiet)
    assert target.read_bytes() == CONTENT
    assert [headers.get("range") for _, headers in seen] == [f"bytes={HALF}-", f"bytes={HALF + HALF // 2}-"]


def test_u5_a_range_of_a_file_without_end_is_not_appended(target: Path) -> None:
    begin(target, CONTENT[:HALF], '"v1"')
    with serving(lambda handler: ranged(handler, 1000, total="*")) as (url, seen):
        download(url, target, Expected(), quiet)
    assert target.read_bytes() == CONTENT
    assert [headers.get("range") for _, headers in seen] == [f"bytes={HALF}-", None]


def test_u5_a_range_of_another_version_is_not_appended(target: Path) -> None:
    """The server does not know If-Range: its 206 names the version that it is of."""
    begin(target, OTHER[:HALF], '"v0"')
    with serving(lambda handler: ranged(handler, len(CONTENT))) as (url, seen):
        download(url, target, Expected(), quiet)
    assert target.read_bytes() == CONTENT
    assert len(seen) == 2


def test_u5_a_range_longer_than_the_file_is_refused(target: Path) -> None:
    begin(target, CONTENT[:HALF], '"v1"')

    def answer(handler: Handler) -> None:
        found = f"bytes {HALF}-{len(CONTENT) - 1}/{len(CONTENT)}"
        send(handler, 206, CONTENT[HALF:] + b"!", ETag='"v1"', Content_Range=found)

    with serving(answer) as (url, _), pytest.raises(UserError, match=f"more than the {len(CONTENT)} bytes"):
        download(url, target, Expected(), quiet)
    assert names(target) == []


def test_u5_an_empty_file_is_empty(target: Path) -> None:
    def answer(handler: Handler) -> None:  # no length is known before the end
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(body)

    empty = Expected(0, hashlib.sha256(b"").hexdigest())
    body = b""
    with serving(answer) as (url, _):
        download(url, target, empty, quiet)
        assert target.read_bytes() == b""
        body = CONTENT
        with pytest.raises(UserError, match="more than the 0 bytes that are expected"):
            download(url, target, empty, quiet)


def test_u5_a_416_with_a_size_that_no_file_has(target: Path) -> None:
    begin(target, CONTENT[:HALF])

    def answer(handler: Handler) -> None:
        if handler.headers.get("Range"):
            send(handler, 416, b"", Content_Range=f"bytes */{'9' * 5000}")
        else:
            send(handler, 200, CONTENT)

    with serving(answer) as (url, _):
        download(url, target, PINNED, quiet)
    assert target.read_bytes() == CONTENT


def test_u5_a_server_that_lies_at_every_other_request_is_given_up(target: Path) -> None:
    def answer(handler: Handler) -> None:
        if len(seen) > 40:
            raise AssertionError("asked for ever")
        if handler.headers.get("Range"):
            send(handler, 206, CONTENT[:5], Content_Range=f"bytes 0-4/{len(CONTENT)}")
        else:
            send(handler, 200, CONTENT[:HALF], Content_Length=str(len(CONTENT)))

    with serving(answer) as (url, seen):
        with pytest.raises(UserError, match="run the command again"):
            download(url, target, PINNED, quiet)
        assert len(seen) == 1 + web._TRIES


def test_u5_a_connection_that_is_reset_early_every_time_still_gets_there(target: Path) -> None:
    """What came before the reset counts, however little it is."""

    def answer(handler: Handler) -> None:
        start = int((handler.headers.get("Range") or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(CONTENT) - start))
        handler.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        handler.end_headers()
        handler.wfile.write(CONTENT[start : start + 40_000])
        handler.wfile.flush()
        time.sleep(0.05)  # or the reset would overtake the bytes
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.close()

    with serving(answer) as (url, seen):
        download(url, target, PINNED, quiet)
    assert target.read_bytes() == CONTENT
    assert len(seen) == -(-len(CONTENT) // 40_000)


@pytest.mark.parametrize("address", ["http://[::1/x", "http://127.0.0.1:1/é"])
def test_an_address_that_is_none_is_one_line(target: Path, address: str) -> None:
    with pytest.raises(UserError, match="leads to no address that can be asked for"):
        download(address, target, PINNED, quiet)


def test_a_redirect_to_an_address_that_is_none(target: Path) -> None:
    with (
        serving(lambda handler: send(handler, 302, b"", Location="http://[::1/x")) as (url, _),
        pytest.raises(UserError, match=r"leads to no address that can be asked for \(Invalid IPv6 URL\)"),
    ):
        download(url, target, PINNED, quiet)
