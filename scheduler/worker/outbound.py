"""One POST to an address that a tenant chose, bounded in where it goes, how long it takes and what it reads.

The name is resolved here, and the address that is connected to is the one that was checked: a resolver
that answers otherwise a moment later changes nothing. TLS verifies the name all the same. Redirects are not
followed, the environment's proxies are not asked, nothing is decompressed. One deadline covers everything
from the look-up to the last byte of the body: each wait on the socket gets what is left of it.

httpcore speaks HTTP over the stream that we hand it; it bounds the head of an answer at 100 KiB. Works alike
in threads, in children of a prefork pool and on gevent's sockets: it needs `socket`, `ssl` and `threading`
alone.
"""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import httpcore

from scheduler.core.networks import Network, refusal

ANSWER_BYTES = 64 * 1024
CONNECT_S = 10.0  # the look-up, each connect and the handshake; within the deadline of the whole
SLICE_S = 0.5  # how soon a blocked call notices that it is no longer wanted
LOOKUPS = 32  # threads that may wait for a resolver that hangs: they cannot be ended

Resolve: TypeAlias = Callable[[str, int], Sequence[tuple[Any, ...]]]


class NotSent(Exception):
    """Nothing of the request has left this machine."""


class Denied(NotSent):
    """The name leads only to where no call may go."""


class NoAnswer(Exception):
    """The request, or a part of it, was sent, and no whole answer came."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """`headers` by lower-case name; `body` as it came over the wire; `cut`: there was more than is kept."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    cut: bool


def look_up(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


class Client:
    """`allowed`: networks that may be called though they are not public. No connection is kept."""

    def __init__(self, *, allowed: Iterable[Network] = (), resolve: Resolve = look_up) -> None:
        self._allowed = tuple(allowed)
        self._resolve = resolve

    def post(
        self,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        timeout_s: float,
        check: Callable[[], None] = lambda: None,
        begins: Callable[[], None] = lambda: None,
        sent: Callable[[], None] = lambda: None,
    ) -> Answer:
        """`check` is called at least every half second and may raise. `begins` comes before the first byte of
        the request is sent, `sent` after its last.

        Raises NotSent (Denied among them) or NoAnswer.
        """
        if not url.startswith(("http://", "https://")):
            raise Denied("only http:// and https:// are spoken")
        call = _Call(deadline=time.monotonic() + timeout_s, timeout_s=timeout_s, check=check, begins=begins)
        backend = _Backend(call, self._allowed, self._resolve)
        try:
            with httpcore.ConnectionPool(ssl_context=_ssl_context(), network_backend=backend) as pool:
                return _exchange(pool, url, headers, body, sent)
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError) as error:
            failure = NoAnswer if call.writing else NotSent
            raise failure(f"{type(error).__name__}: {error}"[:500]) from None


def _exchange(
    pool: httpcore.ConnectionPool,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    sent: Callable[[], None],
) -> Answer:
    target = httpcore.URL(url)
    whole = {
        "Host": _authority(target),
        "Accept-Encoding": "identity",
        "Connection": "close",
        "Content-Length": str(len(body)),
        **headers,
    }

    def notice(event: str, _details: Mapping[str, Any]) -> None:
        if event == "http11.send_request_body.complete":
            sent()

    with pool.stream(
        "POST", target, headers=list(whole.items()), content=body, extensions={"trace": notice}
    ) as response:
        kept, cut = _bounded(response.iter_stream())
        names = {name.lower().decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
        return Answer(status=response.status, headers=names, body=kept, cut=cut)


def _authority(url: httpcore.URL) -> str:
    host = url.host.decode("ascii")
    host = f"[{host}]" if ":" in host else host
    return host if url.port is None else f"{host}:{url.port}"


def _bounded(chunks: Iterable[bytes]) -> tuple[bytes, bool]:
    """What is beyond the bound is left where it is: the connection is closed under it."""
    kept = bytearray()
    for chunk in chunks:
        kept += chunk
        if len(kept) > ANSWER_BYTES:
            return bytes(kept[:ANSWER_BYTES]), True
    return bytes(kept), False


@cache
def _ssl_context() -> ssl.SSLContext:
    """certifi's authorities and the system's (SSL_CERT_FILE); made once, for reading them takes a while."""
    context = httpcore.default_ssl_context()
    context.load_default_certs()
    return context


@dataclass(kw_only=True)
class _Call:
    """The time that is left, by the monotonic clock, and whether anything can have arrived."""

    deadline: float
    timeout_s: float
    check: Callable[[], None]
    begins: Callable[[], None]
    writing: bool = False

    def begin(self) -> None:
        if not self.writing:
            self.begins()
            self.writing = True

    def left(self, error: type[Exception], doing: str) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise error(f"no answer within {self.timeout_s:g} s: the time was up while {doing}")
        return left


class _Backend(httpcore.NetworkBackend):
    """Where httpcore gets its connections from, in place of its own."""

    def __init__(self, call: _Call, allowed: Sequence[Network], resolve: Resolve) -> None:
        self._call = call
        self._allowed = allowed
        self._resolve = resolve

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.NetworkStream:
        """To the first of the name's addresses that may be called and answers."""
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for family, _, _, _, address in self._callable(host, self._addresses(host, port)):
            try:
                return _Stream(self._connected(family, address), self._call)
            except OSError as error:
                failure = httpcore.ConnectError(f"{host} ({address[0]}): {error.strerror or error}")
        raise failure

    def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore.NetworkStream:
        raise Denied("a socket of this machine is no endpoint")

    def _connected(self, family: int, address: Any) -> socket.socket:
        self._call.check()
        left = self._call.left(httpcore.ConnectTimeout, "connecting")
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(min(left, CONNECT_S))
            connection.connect(address)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            connection.close()
            raise
        return connection

    def _callable(self, host: str, found: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Those that may be called. A name that leads to some of both is called where it may be: behind
        DNS64 every name has a translated address too.
        """
        refused = [(one, refusal(str(one[4][0]), self._allowed)) for one in found]
        may_be = [one for one, why in refused if why is None]
        if found and not may_be:
            one, why = refused[0]
            raise Denied(
                f"{host} may not be called: its address {one[4][0]} {why}. An operator can open a network "
                f"by FENCEPOST_HTTP_ALLOW_NETWORKS."
            )
        return may_be

    def _addresses(self, host: str, port: int) -> Sequence[tuple[Any, ...]]:
        """From a thread of its own: no resolver takes a time limit, and one may hang."""
        if not _lookups.acquire(blocking=False):
            raise httpcore.ConnectError(f"{host}: {LOOKUPS} look-ups of names are waiting already")
        lookup = _Lookup(self._resolve, host, port)
        lookup.start()
        ends_at = time.monotonic() + min(CONNECT_S, self._call.left(httpcore.ConnectTimeout, "resolving"))
        while not lookup.ended.wait(min(SLICE_S, max(0.0, ends_at - time.monotonic()))):
            self._call.check()
            if time.monotonic() >= ends_at:
                raise httpcore.ConnectTimeout(f"the name {host} was not resolved in time")
        if isinstance(lookup.failure, OSError | UnicodeError):
            raise httpcore.ConnectError(f"the name {host} cannot be resolved: {lookup.failure}")
        if lookup.failure is not None:
            raise lookup.failure
        return lookup.found


_lookups = threading.BoundedSemaphore(LOOKUPS)


class _Lookup(threading.Thread):
    """Has taken one of `_lookups`, and gives it back whenever the resolver lets it."""

    def __init__(self, resolve: Resolve, host: str, port: int) -> None:
        super().__init__(name="fencepost-lookup", daemon=True)
        self._arguments = (resolve, host, port)
        self.found: Sequence[tuple[Any, ...]] = ()
        self.failure: BaseException | None = None
        self.ended = threading.Event()

    def run(self) -> None:
        resolve, host, port = self._arguments
        try:
            self.found = resolve(host, port)
        except BaseException as error:
            self.failure = error
        finally:
            _lookups.release()
            self.ended.set()


class _Stream(httpcore.NetworkStream):
    """A connection whose every wait is bounded by the deadline of the whole call."""

    def __init__(self, connection: socket.socket, call: _Call) -> None:
        self._connection = connection
        self._call = call

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        while True:
            self._call.check()
            left = self._call.left(httpcore.ReadTimeout, "waiting for its answer")
            self._connection.settimeout(min(left, SLICE_S))
            try:
                return self._connection.recv(max_bytes)
            except TimeoutError:
                continue
            except OSError as error:
                raise httpcore.ReadError(str(error)) from None

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._call.check()
        self._call.begin()
        rest = memoryview(buffer)
        try:
            while rest:
                self._connection.settimeout(self._call.left(httpcore.WriteTimeout, "sending"))
                rest = rest[self._connection.send(rest) :]
        except TimeoutError:
            self._call.left(httpcore.WriteTimeout, "sending")
            raise httpcore.WriteTimeout("the request was not taken in time") from None
        except OSError as error:
            raise httpcore.WriteError(str(error)) from None

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        self._call.check()
        left = self._call.left(httpcore.ConnectTimeout, "shaking hands")
        self._connection.settimeout(min(left, CONNECT_S))  # of the whole handshake, not of each read
        try:
            wrapped = ssl_context.wrap_socket(self._connection, server_hostname=server_hostname)
        except OSError as error:  # a refused certificate is one too
            self.close()
            raise httpcore.ConnectError(f"TLS: {error}") from None
        return _Stream(wrapped, self._call)

    def close(self) -> None:
        self._connection.close()

    def get_extra_info(self, info: str) -> Any:
        return None
