"""A file from an http(s) URL, resumed where it broke off.

What arrives is called `NAME.partial` until it is whole and right. Going on is an offer that a server need not keep: it
may ignore the range, answer another one, have another file by now, or compress. Each of these starts the file anew;
only bytes that a server says follow those that are there are ever appended.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import OpenerDirector, Request

from edge.errors import NotFoundError, OptionError, UserError
from edge.progress import Progress, report_transfer
from edge.sources.addresses import is_offline, shown, split_credentials
from edge.sources.proxies import opener

PARTIAL = ".partial"
_TRIES = 4  # attempts without a byte of progress
_WAIT_S = 0.5  # before the second of them; doubled each time
_TIMEOUT_S = 60.0
_READ_BYTES = 1 << 20
_PAGES = ("text/html", "application/xhtml+xml")
_ABSENT = (404, 410)
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)")


@dataclass(frozen=True, slots=True)
class Expected:
    """What a file must be: its size in bytes and its SHA-256, where they are known, and the most bytes it may have."""

    size: int | None = None
    sha256: str | None = None
    limit: int | None = None

    @property
    def most(self) -> int | None:
        return self.limit if self.size is None else self.size


class _BrokenOffError(Exception):
    """The network, not the disk, ended a transfer."""


class _NoNetworkError(Exception):
    """Nothing can be reached: there is no use in trying again, unless it has just worked."""


def download(url: str, path: Path, expected: Expected, progress: Progress) -> None:
    """Fetch a URL into `path`, whose folder exists. An earlier `.partial` of it is gone on with where that is safe.

    Raises NotFoundError where the server has no such file, UserError when it refuses, breaks off for good, or delivers
    another file (of which nothing stays), OSError when the file system does.
    """
    if not url.startswith(("http://", "https://")):
        raise OptionError(f"{shown(url)}: only http and https addresses can be downloaded")
    partial = _PartialFile(path.with_name(path.name + PARTIAL))
    director = opener()
    failures, restarted, most = 0, False, partial.length()
    begun = most
    while True:
        try:
            whole, reason = _attempt(url, partial, expected, progress, director)
        except _NoNetworkError as error:
            if partial.length() <= begun:
                raise UserError(str(error)) from error
            whole, reason = False, str(error)
        if whole and (expected.sha256 is None or partial.sha256() == expected.sha256):
            partial.finish(path)
            return
        if whole:
            wrong, mixed = partial.sha256(), partial.mixed
            partial.discard()
            if restarted or not mixed:
                raise UserError(f"{shown(url)} has SHA-256 {wrong}, {expected.sha256} is expected")
            restarted = True  # the bytes came from two answers, perhaps of two versions of the file: start again, once
            continue
        # Only a new maximum counts as progress: with a server that sends wrong bytes at every other request, the loop
        # would not end otherwise.
        failures, most = (0, partial.length()) if partial.length() > most else (failures + 1, most)
        if failures == _TRIES:
            raise UserError(
                f"{shown(url)}: {reason} (byte {partial.length()}); run the command again to go on from there"
            )
        if failures:
            time.sleep(_WAIT_S * 2 ** (failures - 1))


def _attempt(
    url: str, partial: _PartialFile, expected: Expected, progress: Progress, director: OpenerDirector
) -> tuple[bool, str]:
    """One request, its answer added to the partial file: whether the file is whole, and if not, why."""
    offset = partial.resumable(expected)
    if offset and offset == expected.size:
        return True, ""
    headers = {"Accept-Encoding": "identity", "User-Agent": "dsedge"}
    try:
        address, credentials = split_credentials(url)
        request = Request(address)
    except ValueError as error:
        raise _no_address(url, error) from error
    for name, value in credentials.items():
        request.add_unredirected_header(name, value)  # a redirect to another host must not carry it along
    if offset:
        headers["Range"] = f"bytes={offset}-"
        if partial.validator:
            headers["If-Range"] = partial.validator
    for name, value in headers.items():
        request.add_header(name, value)
    try:
        answer = director.open(request, timeout=_TIMEOUT_S)
    except HTTPError as error:
        with error:
            return _refused(url, error, partial, expected)
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        if is_offline(error):
            raise _NoNetworkError(f"no network: {urlsplit(address).hostname} cannot be reached ({reason})") from error
        return False, f"no answer: {reason}"
    except ValueError as error:  # the address itself, or the one that it redirects to
        raise _no_address(url, error) from error
    with answer:
        try:
            return _take(answer, partial, offset, expected, progress)
        except _BrokenOffError as error:
            return False, str(error)


def _no_address(url: str, error: ValueError) -> UserError:
    return UserError(f"{shown(url)}: leads to no address that can be asked for ({_brief(error)}); escape it with %")


def _brief(error: ValueError) -> str:
    """The error without the address that it may repeat, password and all."""
    return str(error).partition(":")[0]


def _refused(url: str, error: HTTPError, partial: _PartialFile, expected: Expected) -> tuple[bool, str]:
    """An answer that is an error: one that may pass, one that says that the partial file is whole, or the end."""
    offset = partial.length()
    if error.code == 416 and offset:
        total = re.fullmatch(r"bytes \*/(\d{1,18})", error.headers.get("Content-Range", ""))
        # The total may be the offset that the request named, so it is trusted only where a hash confirms the file.
        if total and int(total[1]) == offset and expected.sha256:
            return True, ""
        partial.discard()
        return False, "the server has no more bytes and does not call the file whole"
    if error.code in _PASSING:
        return False, f"the server answered {error.code} {error.reason}"
    kind = NotFoundError if error.code in _ABSENT else UserError
    raise kind(f"{shown(url)}: the server answered {error.code} {error.reason}")


def _take(answer: Any, partial: _PartialFile, offset: int, expected: Expected, progress: Progress) -> tuple[bool, str]:
    """Add the body of an answer to the partial file, or begin that anew with it."""
    headers: Message = answer.headers
    encoding = (headers.get("Content-Encoding") or "identity").lower()
    if encoding not in ("identity", "gzip", "x-gzip"):
        raise UserError(f"{shown(answer.url)}: the server compresses with {encoding!r}, though it was asked not to")
    plain = encoding == "identity"
    if answer.status not in (200, 206):
        raise UserError(f"{shown(answer.url)}: the server answered {answer.status} {answer.reason}")
    if answer.status == 206:
        total = _continued(headers, partial, offset, expected) if plain else None
        if total is None:
            partial.discard()
            return False, f"the server sent another range ({headers.get('Content-Range')!r})"
        partial.mixed = True
    else:
        if not expected.sha256 and headers.get_content_type() in _PAGES:
            raise UserError(f"{shown(answer.url)}: the server sent a web page, not a file; open it in a browser")
        partial.begin(headers.get("ETag") or headers.get("Last-Modified") or "" if plain else "")
        length = headers.get("Content-Length", "")
        length = length if plain and re.fullmatch(r"\d{1,18}", length) else ""
        if length and expected.size not in (None, int(length)):
            partial.discard()
            raise UserError(f"{shown(answer.url)} has {length} bytes, {expected.size} are expected")
        total = int(length) if length and expected.size is None else expected.size
    if total is not None and expected.limit is not None and total > expected.limit:
        partial.discard()
        raise UserError(f"{shown(answer.url)} has {total} bytes, more than its limit of {expected.limit}")
    stage = f"download {partial.path.name.removesuffix(PARTIAL)}"

    def report(done: int) -> None:
        report_transfer(progress, stage, done, total)

    most = expected.most if total is None else total
    try:
        received = partial.append(_chunks(answer) if plain else _unpacked(_chunks(answer)), most, report)
    except _BrokenOffError:
        if not plain:
            partial.discard()  # a range counts compressed bytes: there is no going on
        raise
    if total is not None and received < total:
        return False, "the connection broke off"
    return True, ""


def _continued(headers: Message, partial: _PartialFile, offset: int, expected: Expected) -> int | None:
    """The size of the whole file by a 206 answer that goes on after `offset`, even if it stops before the end.

    None for another range, another version of the file, and an answer that does not tell where the file ends.
    """
    found = _RANGE.fullmatch(headers.get("Content-Range", ""))
    version = headers.get("ETag" if partial.validator.startswith('"') else "Last-Modified", partial.validator)
    if not found or int(found[1]) != offset or (partial.validator and version != partial.validator):
        return None
    size = expected.size if found[2] == "*" else int(found[2])
    return size if size and expected.size in (None, size) else None


def _chunks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """What arrives as it arrives: of a whole chunk, a connection that is reset would lose all that came before."""
    try:
        while chunk := answer.read1(_READ_BYTES):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenOffError(f"the connection broke off: {error}") from error


def _unpacked(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The content of a gzip stream, in bounded chunks; raises _BrokenOffError for one that is cut or damaged."""
    packed = zlib.decompressobj(wbits=31)
    try:
        for chunk in chunks:
            yield packed.decompress(chunk, _READ_BYTES)
            while packed.unconsumed_tail:
                yield packed.decompress(packed.unconsumed_tail, _READ_BYTES)
    except zlib.error as error:
        raise _BrokenOffError(f"the compressed answer is damaged: {error}") from error
    if not packed.eof:
        raise _BrokenOffError("the compressed answer broke off")


class _PartialFile:
    """The file as far as it is there, and in `.partial.tag` what the server called that version of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mixed = False
        self._tag = path.with_name(path.name + ".tag")
        self.validator = self._tag.read_text(encoding="latin-1") if self._tag.is_file() else ""

    def length(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def resumable(self, expected: Expected) -> int:
        """The bytes to go on after. Without a hash and without a name for the version, going on would be a guess."""
        length = self.length()
        if length and (length > (expected.size or length) or not (expected.sha256 or self.validator)):
            self.discard()
            return 0
        self.mixed = self.mixed or length > 0
        return length

    def begin(self, validator: str) -> None:
        """Empty the file, to be filled from one answer. A weak ETag does not vouch for bytes."""
        self.discard()
        self.validator = "" if validator.startswith("W/") else validator
        if self.validator:
            self._tag.write_text(self.validator, encoding="latin-1")

    def append(self, chunks: Iterator[bytes], limit: int | None, report: Callable[[int], None]) -> int:
        """Write chunks behind what is there, synced; the length then. Raises UserError beyond `limit`, discarding."""
        try:
            with open(self.path, "ab") as file:
                done = file.tell()
                try:
                    for chunk in chunks:
                        done += len(chunk)
                        if limit is not None and done > limit:
                            raise UserError(f"the server delivers more than the {limit} bytes that are expected")
                        file.write(chunk)
                        report(done)
                finally:
                    file.flush()
                    os.fsync(file.fileno())
        except UserError:
            self.discard()
            raise
        return done

    def sha256(self) -> str:
        with open(self.path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def finish(self, path: Path) -> None:
        os.replace(self.path, path)
        self._tag.unlink(missing_ok=True)

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._tag.unlink(missing_ok=True)
        self.mixed = False
        self.validator = ""
