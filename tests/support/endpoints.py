"""Endpoints of HTTP targets: small servers that answer just as a test says, also as no server should."""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.support.wait import wait_until

Wire = socket.socket


@dataclass(frozen=True, kw_only=True)
class Request:
    """`headers` by lower-case name."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Behaviour = Callable[[Request, Wire], None]


def answer(status: int, body: bytes = b"", **headers: str) -> Behaviour:
    """Headers by name, `_` for `-`."""

    def behave(_: Request, wire: Wire) -> None:
        lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        wire.sendall("\r\n".join([*lines, "", ""]).encode() + body)

    return behave


def hang(_: Request, wire: Wire) -> None:
    """Until the caller has had enough."""
    wire.settimeout(60)
    with suppress(OSError):
        wire.recv(1)


def hang_up(_: Request, wire: Wire) -> None:
    wire.shutdown(socket.SHUT_RDWR)


@dataclass(kw_only=True)
class Endpoint:
    """`behave` may be replaced at any time. Counts connections, failed handshakes too."""

    host: str
    port: int
    behave: Behaviour
    connections: int = 0
    requests: list[Request] = field(default_factory=list)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/hook"

    def wait_for(self, count: int, timeout: float = 60) -> list[Request]:
        wait_until(lambda: len(self.requests) >= count, timeout, message=f"no {count} requests came")
        return self.requests


@contextmanager
def endpoint(
    behave: Behaviour | None = None, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[Endpoint]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, 0))
        listener.listen(64)
        made = Endpoint(
            host=host, port=listener.getsockname()[1], behave=behave or answer(200, b'{"ok": true}')
        )
        ended = threading.Event()
        wires: list[Wire] = []
        accepting = threading.Thread(target=_accept, args=(made, listener, tls, ended, wires))
        accepting.start()
        try:
            yield made
        finally:
            ended.set()
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            accepting.join(10)
            for wire in wires:
                with suppress(OSError):
                    wire.shutdown(socket.SHUT_RDWR)


def _accept(
    made: Endpoint,
    listener: socket.socket,
    tls: ssl.SSLContext | None,
    ended: threading.Event,
    wires: list[Wire],
) -> None:
    threads = []
    while True:
        try:
            wire, _ = listener.accept()
        except OSError:
            break
        if ended.is_set():
            wire.close()
            break
        made.connections += 1
        wires.append(wire)
        threads.append(threading.Thread(target=_serve, args=(made, wire, tls)))
        threads[-1].start()
    for wire in wires:
        with suppress(OSError):
            wire.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(10)


def _serve(made: Endpoint, wire: Wire, tls: ssl.SSLContext | None) -> None:
    with wire, suppress(OSError, ValueError):
        if tls is not None:
            wire = tls.wrap_socket(wire, server_side=True)
        with wire:
            request = _read(wire)
            if request is not None:
                made.requests.append(request)
                made.behave(request, wire)


def _read(wire: Wire) -> Request | None:
    wire.settimeout(60)
    received = b""
    while b"\r\n\r\n" not in received:
        piece = wire.recv(65536)
        if not piece:
            return None
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    line, *rest = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in rest)}
    while len(body) < int(headers.get("content-length", 0)):
        body += wire.recv(65536)
    return Request(line=line, headers=headers, body=body)
