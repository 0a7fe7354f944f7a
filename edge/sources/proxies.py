"""Proxies as the environment names them (HTTPS_PROXY, NO_PROXY, ...), and never between this machine and itself."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPMessage
from ipaddress import IPv6Address, ip_address
from typing import IO
from urllib import request
from urllib.error import HTTPError
from urllib.parse import urlsplit

from edge.errors import UnsupportedError
from edge.sources.addresses import shown

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str | None) -> bool:
    """Whether a host name (without port) is this machine by its spelling; no name is looked up."""
    if not host:
        return False
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return _is_short_loopback(name)
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def _is_short_loopback(name: str) -> bool:
    """127.1, 0x7f000001 and the like, which systems take for addresses too."""
    try:
        return socket.inet_aton(name)[0] == 127
    except OSError:
        return False


def direct_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with loopback among what NO_PROXY lists, for programs that read proxies from it."""
    listed = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    hosts = ",".join([*([listed] if listed else []), *LOOPBACK])
    return {**environment, "no_proxy": hosts, "NO_PROXY": hosts}


@contextmanager
def loopback_direct() -> Iterator[None]:
    """`direct_environment` for a library of this process that reads proxies from it."""
    before = {name: os.environ.get(name) for name in ("no_proxy", "NO_PROXY")}
    os.environ.update({name: value for name, value in direct_environment(os.environ).items() if name in before})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _named() -> dict[str, str]:
    """The proxies for http and https; the one for everything (ALL_PROXY) serves where these have none of their own."""
    found = request.getproxies()
    named = {scheme: found.get(scheme) or found.get("all") for scheme in ("http", "https")}
    return {scheme: proxy for scheme, proxy in named.items() if proxy}


class _Proxies(request.ProxyHandler):
    """The environment's proxies; requests to this machine go straight there."""

    def proxy_open(self, req: request.Request, proxy: str, type: str) -> object:  # noqa: A002 (the base class names it so)
        if is_loopback(urlsplit(req.full_url).hostname) or (req.host and request.proxy_bypass(req.host)):
            return None
        scheme, found, _ = proxy.partition("://")
        if found and scheme.lower() not in ("http", "https"):
            raise UnsupportedError(
                f"the proxy {shown(proxy)} for {type} is a {scheme} proxy, which dsedge's own downloads do not speak; "
                f"name an http proxy in {type.upper()}_PROXY, or the host in NO_PROXY"
            )
        return super().proxy_open(req, proxy, type)


class _Redirects(request.HTTPRedirectHandler):
    """Redirects as usual, but never from https to something that anyone on the way can read or change."""

    def redirect_request(
        self, req: request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> request.Request | None:
        if urlsplit(req.full_url).scheme == "https" and urlsplit(newurl).scheme != "https":
            raise HTTPError(req.full_url, code, f"and leads on to {shown(newurl)}, away from https", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def opener() -> request.OpenerDirector:
    """An opener for http and https alone, through the environment's proxies."""
    director = request.OpenerDirector()
    for handler in (
        _Proxies(_named()),
        request.HTTPHandler(),
        request.HTTPSHandler(),
        request.UnknownHandler(),
        request.HTTPDefaultErrorHandler(),
        _Redirects(),
        request.HTTPErrorProcessor(),
    ):
        director.add_handler(handler)
    return director
