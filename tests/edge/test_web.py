"""Downloads that are resumed, against servers that do it right and servers that do not (U5); proxies."""

from __future__ import annotations

import gzip
import hashlib
from http.client import HTTPMessage
from io import BytesIO
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request

import pytest

from edge.errors import OptionError, UserError
from edge.progress import Transfer
from edge.sources import proxies, web
from edge.sources.web import Expected, download
from tests.edge.servers import Handler, send, serving

CONTENT = bytes(range(256)) * 1000
OTHER = CONTENT[::-1]
PINNED = Expected(len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
HALF = len(CONTENT) // 2


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_WAIT_S", 0.0)
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def quiet(stage: str, done: float, transfer: Transfer | None = None) -> None:
    assert 0.0 <= done <= 1.0


def begin(target: Path, content: bytes, tag: str = "") -> Path:
    """A partial file as an earlier, interrupted download left it."""
    partial = target.with_name(target.name + ".partial")
    partial.write_bytes(content)
    if tag:
        partial.with_name(partial.name + ".tag").write_text(tag)
    return partial


def names(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir())


def honest(handler: Handler, content: bytes = CONTENT, tag: str = '"v1"') -> None:
    """What a server that knows ranges answers."""
    wanted = handler.headers.get("Range")
    if not wanted or handler.headers.get("If-Range", tag) != tag:
        send(handler, 200, content, ETag=tag)
        return
    start = int(wanted.removeprefix("bytes=").removesuffix("-"))
    if start >= len(content):
        send(handler, 416, b"no such range", Content_Range=f"bytes */{len(content)}")
        return
    found = f"bytes {start}-{len(content) - 1}/{len(content)}"
    send(handler, 206, content[start:], Content_Range=found, ETag=tag)


def test_a_whole_file_in_one_go(target: Path) -> None:
    with serving(honest) as (url, seen):
        download(f"{url}/model", target, PINNED, quiet)
    assert target.read_bytes() == CONTENT
    assert names(target) == ["model.gguf"]
    assert [headers.get("range") for _, headers in seen] == [None]
    assert seen[0][1]["accept-encoding"] == "identity"


@pytest.mark.parametrize(("expected", "tag"), [(PINNED, ""), (Expected(), '"v1"')])
def test_u5_an_interrupted_download_is_gone_on_with(target: Path, expected: Expected, tag: str) -> None:
    begin(target, CONTENT[:HALF], tag)
    with serving(honest) as (url, seen):
        download(url, target, expected, quiet)
    assert target.read_bytes() == CONTENT
    assert [headers.get("range") for _, headers in seen] == [f"bytes={HALF}-"]
    assert names(target) == ["model.gguf"]


def test_u5_without_hash_and_version_nothing_is_appended(target: Path) -> None:
    begin(target, OTHER[:HALF])
    with serving(honest) as (url, seen):
        download(url, target, Expected(), quiet)
    assert target.read_bytes() == CONTENT
    assert [headers.get("range") for _, headers in seen] == [None]


def test_u5_another_version_since_is_fetched_whole(target: Path) -> None:
    begin(target, OTHER[:HALF], '"v0"')
    with serving(honest) as (url, seen):
        download(url, target, Expected(), quiet)
    assert target.read_bytes() == CONTENT
    assert seen[0][1]["if-range"] == '"v0"'


def test_u5_a_weak_tag_vouches_for_nothing(target: Path) -> None:
    def cut(handler: Handler) -> None:
        send(handler, 200, CONTENT[:HALF], ETag='W/"v1"', Content_Length=str(len(CONTENT)))

    with serving(cut) as (url, seen), pytest.raises(UserError, match="broke off"):
        download(url, target, Expected(), quiet)
    assert [headers.get("range") for _, headers in seen] == [None] * len(seen)


def test_u5_a_server_that_ignores_the_range(target: Path) -> None:
    begin(target, CONTENT[:HALF])
    with serving(lambda handler: send(handler, 200, CONTENT)) as (url, seen):
        download(url, target, PINNED, quiet)
    assert target.read_bytes() == CONTENT
    assert len(seen) == 1


@pytest.mark.parametrize("found", [
    f"bytes 0-{len(CONTENT) - 1}/{len(CONTENT)}",
    f"bytes {HALF + 1}-{len(CONTENT) - 1}/{len(CONTENT)}",
    f"bytes {HALF}-{len(CONTENT) - 1}/{len(CONTENT) + 1}",
    "bytes */5",
    "",
])  # fmt: skip
def test_u5_a_wrong_content_range(target: Path, found: str) -> None:
    begin(target, CONTENT[:HALF])

    def answer(handler: Handler) -> None:
        if handler.headers.get("Range"):
            send(handler, 206, CONTENT[HALF:], Content_Range=found)
        else:
            honest(handler)

    with serving(answer) as (url, seen):
        download(url, target, PINNED, quiet)
    assert target.read_bytes() == CONTENT
    assert [headers.get("range") for _, headers in seen] == [f"bytes={HALF}-", None]


def test_u5_the_text_of_a_416_is_not_appended(target: Path) -> None:
    begin(target, CONTENT[:HALF])

    def answer(handler: Handler) -> None:
        if handler.headers.get("Range"):
            send(handler, 416, b"Requested Range Not Satisfiable" * 10, Content_Range=f"bytes */{HALF - 1}")
        else:
            honest(handler)

    with serving(answer) as (url, _):
        download(url, target, PINNED, quiet)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize(("expected", "requests"), [(Expected(None, PINNED.sha256), 1), (Expected(), 2)])
def test_n34_a_416_at_the_very_end_means_whole_only_where_a_hash_says_so(
    target: Path, expected: Expected, requests: int
) -> None:
    begin(target, CONTENT, '"v1"')
    with serving(honest) as (url, seen):
        download(url, target, expected, quiet)
    assert target.read_bytes() == CONTENT
    assert len(seen) == requests


def test_n34_a_416_that_repeats_our_own_length_does_not_make_a_cut_file_whole(target: Path) -> None:
    begin(target, CONTENT[:HALF], '"v1"')

    def answer(handler: Handler) -> None:
        if handler.headers.get("Range"):
            send(handler, 416, b"", Content_Range=f"bytes */{HALF}")
        else:
            honest(handler)

    with serving(answer) as (url, _):
        download(url, target, Expected(), quiet)
    assert target.read_bytes() == CONTENT


def test_u5_a_whole_partial_file_needs_no_server(target: Path) -> None:
    begin(target, CONTENT)
    download("http://127.0.0.1:1/model", target, PINNED, quiet)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("expected", [PINNED, Expected()])
def test_u5_cut_at_half_again_and_again(target: Path, expected: Expected) -> None:
    def answer(handler: Handler) -> None:
        start = int((handler.headers.get("Range") or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        rest = CONTENT[start:]
        stop = start + max(len(rest) // 2, 1)
        found = {"Content_Range": f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}"} if start else {}
        send(handler, 206 if start else 200, CONTENT[start:stop], ETag='"v1"', Content_Length=str(len(rest)), **found)

    with serving(answer) as (url, seen):
        download(url, target, expected, quiet)
    assert target.read_bytes() == CONTENT
    starts = [headers.get("range") for _, headers in seen]
    assert starts[:3] == [None, f"bytes={HALF}-", f"bytes={HALF + HALF // 2}-"]
    assert None not in starts[1:]


def test_u5_a_server_that_always_breaks_off_is_given_up_and_its_part_kept(target: Path) -> None:
    def answer(handler: Handler) -> None:
        if handler.headers.get("Range"):
            handler.close_connection = True
            handler.connection.close()
        else:
            send(handler, 200, CONTENT[:HALF], Content_Length=str(len(CONTENT)))

    with serving(answer) as (url, seen):
        with pytest.raises(UserError, match=rf"\(byte {HALF}\); run the command again to go on from there"):
            download(url, target, PINNED, quiet)
        assert names(target) == ["model.gguf.partial"]
        assert len(seen) == 1 + web._TRIES
    with serving(honest) as (url, _):
        download(url, target, PINNED, quiet)
    assert target.read_bytes() == CONTENT


def test_u5_gzip_that_nobody_asked_for(target: Path) -> None:
    packed = gzip.compress(CONTENT)
    with serving(lambda handler: send(handler, 200, packed, Content_Encoding="gzip")) as (url, _):
        download(url, target, PINNED, quiet)
    assert target.read_bytes() == CONTENT


def test_u5_a_range_of_compressed_bytes_is_not_appended(target: Path) -> None:
    begin(target, CONTENT[:HALF], '"v1"')
    packed = gzip.compress(CONTENT)

    def answer(handler: Handler) -> None:
        if handler.headers.get("Range"):
            found = f"bytes {HALF}-{len(CONTENT) - 1}/{len(CONTENT)}"
            send(handler, 206, packed, Content_Encoding="gzip", Content_Range=found)
        else:
            send(handler, 200, packed, Content_Encoding="gzip")

    with serving(answer) as (url, _):
        download(url, target, Expected(), quiet)
    assert target.read_bytes() == CONTENT


def test_u5_compressed_and_cut_leaves_nothing(target: Path) -> None:
    packed = gzip.compress(CONTENT)[:-20]
    with (
        serving(lambda handler: send(handler, 200, packed, Content_Encoding="gzip", ETag='"z"')) as (url, seen),
        pytest.raises(UserError, match="broke off"),
    ):
        download(url, target, Expected(), quiet)
    assert [headers.get("range") for _, headers in seen] == [None] * web._TRIES


def test_an_encoding_that_is_not_known_is_refused(target: Path) -> None:
    with (
        serving(lambda handler: send(handler, 200, b"??", Content_Encoding="br")) as (url, _),
        pytest.raises(UserError, match="compresses with 'br'"),
    ):
        download(url, target, PINNED, quiet)
    assert names(target) == []


def test_u5_a_part_of_another_file_is_fetched_anew_once(target: Path) -> None:
    begin(target, OTHER[:HALF])
    with serving(honest) as (url, seen):
        download(url, target, PINNED, quiet)
    assert target.read_bytes() == CONTENT
    assert [headers.get("range") for _, headers in seen] == [f"bytes={HALF}-", None]


def test_another_file_of_the_same_size_is_refused_and_nothing_stays(target: Path) -> None:
    with serving(lambda handler: honest(handler, OTHER)) as (url, seen):
        with pytest.raises(UserError, match=f"has SHA-256 .*, {PINNED.sha256} is expected"):
            download(url, target, PINNED, quiet)
        begin(target, CONTENT[:HALF])
        with pytest.raises(UserError, match="is expected"):
            download(url, target, PINNED, quiet)
    assert len(seen) == 3
    assert names(target) == []


@pytest.mark.parametrize("chunked", [False, True])
def test_u5_a_file_that_is_too_long_is_refused(target: Path, chunked: bool) -> None:
    def answer(handler: Handler) -> None:
        if chunked:  # no length is known before the end
            handler.send_response(200)
            handler.end_headers()
            handler.wfile.write(CONTENT * 9)
        else:
            send(handler, 200, CONTENT + b"!")

    with (
        serving(answer) as (url, _),
        pytest.raises(UserError, match=f"more than the {len(CONTENT)} bytes|has {len(CONTENT) + 1} bytes"),
    ):
        download(url, target, PINNED, quiet)
    assert names(target) == []


def test_errors_of_the_server(target: Path) -> None:
    with serving(lambda handler: send(handler, 404, b"<html>")) as (url, seen):
        with pytest.raises(UserError, match="answered 404 Not Found"):
            download(url, target, PINNED, quiet)
        assert len(seen) == 1
    with serving(lambda handler: send(handler, 503, b"")) as (url, seen):
        with pytest.raises(UserError, match="answered 503"):
            download(url, target, PINNED, quiet)
        assert len(seen) == web._TRIES
    for bad in ("file:///etc/hostname", "ftp://127.0.0.1/x"):
        with pytest.raises(OptionError, match="only http and https"):
            download(bad, target, PINNED, quiet)
    elsewhere = "file:///etc/hostname"
    with serving(lambda handler: send(handler, 302, b"", Location=elsewhere)) as (url, _), pytest.raises(UserError):
        download(url, target, PINNED, quiet)
    assert names(target) == []


def test_an_answer_without_content_is_no_file(target: Path) -> None:
    with (
        serving(lambda handler: send(handler, 204, b"")) as (url, _),
        pytest.raises(UserError, match="answered 204 No Content"),
    ):
        download(url, target, Expected(), quiet)
    assert names(target) == []


def test_a_redirect_keeps_the_range(target: Path) -> None:
    begin(target, CONTENT[:HALF])

    def answer(handler: Handler) -> None:
        if handler.path == "/moved":
            honest(handler)
        else:
            send(handler, 302, b"", Location="/moved")

    with serving(answer) as (url, seen):
        download(f"{url}/model", target, PINNED, quiet)
    assert target.read_bytes() == CONTENT
    assert [(path, headers.get("range")) for path, headers in seen] == [
        ("/model", f"bytes={HALF}-"),
        ("/moved", f"bytes={HALF}-"),
    ]


def test_a_redirect_away_from_https_says_so() -> None:
    asked = Request("https://models.example/x")
    with pytest.raises(HTTPError, match=r"302: and leads on to http://models\.example/x, away from https"):
        proxies._Redirects().redirect_request(asked, BytesIO(), 302, "Found", HTTPMessage(), "http://models.example/x")


def test_loopback_never_goes_through_a_proxy_and_others_do(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(honest) as (proxy, through), serving(honest) as (url, direct):
        monkeypatch.setenv("http_proxy", proxy)
        download(f"{url}/model", target, PINNED, quiet)
        assert (len(through), len(direct)) == (0, 1)
        target.unlink()
        download("http://models.example/model", target, PINNED, quiet)
        assert [path for path, _ in through] == ["http://models.example/model"]
        target.unlink()
        monkeypatch.setenv("no_proxy", "models.example")
        with pytest.raises(UserError, match=r"no network: models\.example cannot be reached"):
            download("http://models.example/model", target, PINNED, quiet)
    assert len(through) == 1


@pytest.mark.parametrize(("host", "found"), [
    ("localhost", True), ("LOCALHOST.", True), ("a.localhost", True), ("127.0.0.1", True), ("127.9.9.9", True),
    ("::1", True), ("[::1]", True), ("127.1", True), ("0x7f000001", True), ("::ffff:127.0.0.1", True), ("10.1", False),
    ("::ffff:10.0.0.1", False), ("localhost.example", False), ("10.0.0.1", False), ("", False), (None, False),
])  # fmt: skip
def test_what_is_loopback(host: str | None, found: bool) -> None:
    assert proxies.is_loopback(host) is found


def test_other_programs_are_told_not_to_use_a_proxy_for_loopback() -> None:
    told = proxies.direct_environment({"NO_PROXY": "internal.example", "A": "b"})
    assert told == {
        "A": "b",
        "NO_PROXY": "internal.example,localhost,127.0.0.1,::1",
        "no_proxy": "internal.example,localhost,127.0.0.1,::1",
    }
