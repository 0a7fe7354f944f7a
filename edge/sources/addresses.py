"""Addresses: what may be shown of one, the password that one carries, and what it means that none can be reached."""

from __future__ import annotations

import base64
import errno
import socket
from urllib.parse import SplitResult, unquote, urlsplit

# What a system says when no host can be reached at all, besides names that cannot be looked up.
_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)


def shown(url: str) -> str:
    """The address as a message may show it: without its password, and without its query, which may be a signature."""
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that are no IPv6 address
        return url.partition("?")[0].rpartition("@")[2]
    hidden = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="…" if parts.query else "", fragment="")
    return hidden.geturl()


def split_credentials(url: str) -> tuple[str, dict[str, str]]:
    """The address without user and password, and the header that carries them (RFC 7617); none if it has none."""
    parts: SplitResult = urlsplit(url)
    if "@" not in parts.netloc:
        return url, {}
    given, _, host = parts.netloc.rpartition("@")
    user, _, password = given.partition(":")
    token = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
    return parts._replace(netloc=host).geturl(), {"Authorization": f"Basic {token}"}


def is_offline(error: BaseException) -> bool:
    """Whether the error, or what caused it, is that no name can be looked up or no network is there."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        found = waiting.pop()
        if not isinstance(found, BaseException) or id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, socket.gaierror) or (isinstance(found, OSError) and found.errno in _UNREACHABLE):
            return True
        waiting += [found.__cause__, found.__context__, getattr(found, "reason", None), *found.args]
    return False
