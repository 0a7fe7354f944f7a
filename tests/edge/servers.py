"""A local HTTP server whose answers a test writes itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Handler = BaseHTTPRequestHandler
Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    """(address, requests so far as (path, headers)) of a server on a loopback port that always gives `answer`."""
    seen: list[tuple[str, dict[str, str]]] = []

    class Given(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            answer(self)

        do_HEAD = do_GET  # noqa: N815 (the base class names it so)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class names it so)
            """Nothing: the log would mix with the tests' own output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Given)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def send(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    """A whole answer. Header names are keywords with `_` for `-`; Content-Length is the body's unless given."""
    handler.send_response(status)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    for name, value in {"Content-Length": str(len(body)), **sent}.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)
