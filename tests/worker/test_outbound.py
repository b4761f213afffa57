"""The client for addresses that tenants choose, against servers that behave as badly as they like."""

import contextlib
import gzip
import itertools
import json
import os
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from scheduler.core.networks import networks_of
from scheduler.worker import outbound
from scheduler.worker.outbound import ANSWER_BYTES, Answer, Client, Denied, NoAnswer, NotSent
from tests.support.endpoints import Endpoint, Request, Wire, answer, endpoint, hang, hang_up
from tests.support.processes import REPOSITORY

LOOPBACK = networks_of("127.0.0.0/8")
PATIENCE_S = 3.0  # beyond the deadline of a call, on a busy machine


def post(
    url: str,
    *,
    timeout_s: float = 10,
    body: bytes = b'{"kind": 1}',
    client: Client | None = None,
    **more: Any,
) -> Answer:
    caller = client or Client(allowed=LOOPBACK)
    return caller.post(url, {"Content-Type": "application/json"}, body, timeout_s=timeout_s, **more)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds + PATIENCE_S


def addresses(*texts: str) -> outbound.Resolve:
    """A resolver that answers with these, whatever the name; the port is that which was asked for."""

    def resolve(host: str, port: int) -> Sequence[tuple[Any, ...]]:
        return [found for text in texts for found in socket.getaddrinfo(text, port, type=socket.SOCK_STREAM)]

    return resolve


def test_one_post_and_its_answer() -> None:
    with endpoint(answer(200, b'{"rows": 3}', Retry_After="7")) as server:
        got = post(server.url)
    assert (got.status, got.body, got.cut) == (200, b'{"rows": 3}', False)
    assert got.headers["retry-after"] == "7"
    (request,) = server.requests
    assert request.line == "POST /hook HTTP/1.1"
    assert request.json == {"kind": 1}
    assert request.headers["host"] == f"127.0.0.1:{server.port}"
    assert request.headers["accept-encoding"] == "identity"


class TestWhereItGoes:
    @pytest.mark.parametrize(
        ("listens", "hosts"),
        [
            ("127.0.0.1", ["127.0.0.1", "127.1", "0x7f000001", "2130706433", "0177.0.0.1", "localhost"]),
            ("127.0.0.1", ["0.0.0.0", "0", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::]"]),
            ("127.8.9.10", ["127.8.9.10", "[::ffff:127.8.9.10]"]),
            ("0.0.0.0", ["0.0.0.0", "127.0.0.1", "[::ffff:0.0.0.0]"]),
            ("::1", ["[::1]", "[0:0:0:0:0:0:0:1]", "[::]"]),
        ],
    )
    def test_no_connection_comes_to_a_denied_address(self, listens: str, hosts: list[str]) -> None:
        with endpoint(host=listens) as server:
            for host in hosts:
                with pytest.raises(NotSent):
                    post(f"http://{host}:{server.port}/", client=Client(), timeout_s=5)
        assert server.connections == 0

    @pytest.mark.parametrize(
        "name",
        ["127.0.0.1", "::1", "169.254.169.254", "10.0.0.1", "fe80::1", "64:ff9b::7f00:1", "2002:7f00:1::"],
    )
    def test_a_name_that_leads_there_is_denied_and_said_so(self, name: str) -> None:
        with pytest.raises(Denied, match=r"may not be called: its address .* is .*FENCEPOST_HTTP"):
            post("http://billing.example/", client=Client(resolve=addresses(name)))

    def test_of_mixed_answers_only_what_may_be_called_is(self) -> None:
        with endpoint(host="127.0.0.2") as public, endpoint(host="127.0.0.3") as private:
            client = Client(
                allowed=networks_of("127.0.0.2/32"), resolve=addresses("127.0.0.3", "::1", "127.0.0.2")
            )
            assert post(f"http://mixed.example:{public.port}/", client=client).status == 200
        assert (public.connections, private.connections) == (1, 0)

    def test_a_redirect_is_an_answer_and_leads_nowhere(self) -> None:
        with endpoint() as inner, endpoint() as server:
            server.behave = answer(302, Location=inner.url)
            assert post(server.url).status == 302
        assert (server.connections, inner.connections) == (1, 0)

    def test_proxies_of_the_environment_are_not_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with endpoint() as proxy, endpoint() as server:
            for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            assert post(server.url).status == 200
            with pytest.raises(Denied):
                post("http://example.com/", client=Client(resolve=addresses("10.0.0.1")))
        assert proxy.connections == 0

    @pytest.mark.parametrize(
        "url", ["ftp://127.0.0.1/", "file:///etc/passwd", "unix:///run/x.sock", "ws://127.0.0.1/"]
    )
    def test_no_other_scheme_is_spoken(self, url: str) -> None:
        with pytest.raises(NotSent, match="only http:// and https://"):
            post(url)


def test_a_name_is_looked_up_once_and_what_was_checked_is_called() -> None:
    """Rebinding: the second answer of this resolver would lead into the house."""
    with endpoint(host="127.0.0.2") as public, endpoint(host="127.0.0.3") as private:
        answers = itertools.chain(["127.0.0.2"], itertools.repeat("127.0.0.3"))
        asked = []

        def resolve(host: str, port: int) -> Sequence[tuple[Any, ...]]:
            asked.append(host)
            return addresses(next(answers))(host, public.port)

        client = Client(allowed=networks_of("127.0.0.2/32"), resolve=resolve)
        assert post("http://rebinding.example/", client=client).status == 200
        with pytest.raises(Denied):
            post("http://rebinding.example/", client=client)
    assert (asked, public.connections, private.connections) == (["rebinding.example"] * 2, 1, 0)


class TestHowLongItTakes:
    def test_a_resolver_that_hangs(self) -> None:
        release = threading.Event()

        def resolve(host: str, port: int) -> Sequence[tuple[Any, ...]]:
            release.wait(60)
            return []

        with within(0.5), pytest.raises(NotSent, match="not resolved in time"):
            post("http://slow.example/", client=Client(resolve=resolve), timeout_s=0.5)
        release.set()

    def test_resolvers_that_hang_are_bounded_in_number(self) -> None:
        release = threading.Event()

        def resolve(host: str, port: int) -> Sequence[tuple[Any, ...]]:
            release.wait(60)
            return []

        client = Client(resolve=resolve)
        for _ in range(outbound.LOOKUPS):
            with pytest.raises(NotSent):
                post("http://slow.example/", client=client, timeout_s=0.01)
        with pytest.raises(NotSent, match="look-ups of names are waiting"):
            post("http://slow.example/", client=client)
        release.set()

    def test_a_listener_that_never_accepts(self) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            address = listener.getsockname()
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    filler.connect(address)
            with within(1), pytest.raises(NotSent):
                post(f"http://127.0.0.1:{address[1]}/", timeout_s=1)
            for filler in fillers:
                filler.close()

    def test_a_handshake_that_hangs_has_sent_nothing(self) -> None:
        with endpoint() as server, within(1), pytest.raises(NotSent):
            post(server.url.replace("http:", "https:"), timeout_s=1)

    def test_silence_after_the_request(self) -> None:
        with endpoint(hang) as server, within(1), pytest.raises(NoAnswer, match="no answer within 1 s"):
            post(server.url, timeout_s=1)

    @pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"])
    def test_a_drip_of_bytes_buys_no_time(self, first: bytes) -> None:
        def drip(_: Request, wire: Wire) -> None:
            wire.sendall(first)
            for byte in itertools.cycle(b"HTTP/1.1 200 OK\r\nX: " if not first else b"x"):
                wire.sendall(bytes([byte]))
                threading.Event().wait(0.05)

        with endpoint(drip) as server, within(1), pytest.raises(NoAnswer):
            post(server.url, timeout_s=1)

    def test_endless_interim_answers_buy_no_time(self) -> None:
        def more_to_come(_: Request, wire: Wire) -> None:
            while True:
                wire.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n")
                threading.Event().wait(0.02)

        with endpoint(more_to_come) as server, within(1), pytest.raises(NoAnswer):
            post(server.url, timeout_s=1)

    def test_a_peer_that_does_not_read(self) -> None:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            listener.bind(("127.0.0.1", 0))
            listener.listen(5)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            with within(1), pytest.raises(NoAnswer):
                post(url, body=b"x" * 20_000_000, timeout_s=1)

    def test_who_is_no_longer_wanted_learns_it_while_it_waits(self) -> None:
        class Unwanted(Exception):
            pass

        unwanted = threading.Event()

        def check() -> None:
            if unwanted.is_set():
                raise Unwanted

        with endpoint(hang) as server, within(1), pytest.raises(Unwanted):
            post(server.url, timeout_s=60, check=check, sent=unwanted.set)


class TestWhatItReads:
    def test_no_more_of_a_body_than_the_bound_and_the_rest_stays_where_it_is(self) -> None:
        """Ten gigabytes are offered; memory and time are those of the first pieces."""
        stopped_after = []

        def flood(_: Request, wire: Wire) -> None:
            wire.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
            sent, piece = 0, b"x" * 1_000_000
            try:
                while True:
                    wire.sendall(piece)
                    sent += len(piece)
            finally:
                stopped_after.append(sent)

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with endpoint(flood) as server, within(2):
            got = post(server.url)
        assert (len(got.body), got.cut) == (ANSWER_BYTES, True)
        assert stopped_after[0] < 50_000_000
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB

    @pytest.mark.parametrize("framing", [b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFF\r\n", b"\r\n"])
    def test_whatever_its_framing(self, framing: bytes) -> None:
        def flood(_: Request, wire: Wire) -> None:
            wire.sendall(b"HTTP/1.1 200 OK\r\n" + framing)
            while True:
                wire.sendall(b"x" * 100_000)

        with endpoint(flood) as server, within(2):
            got = post(server.url)
        assert (len(got.body), got.cut) == (ANSWER_BYTES, True)

    def test_a_gzip_bomb_is_not_expanded(self) -> None:
        bomb = gzip.compress(b"\0" * 50_000_000)
        with endpoint(answer(200, bomb, Content_Encoding="gzip")) as server:
            got = post(server.url)
        assert got.body == bomb[:ANSWER_BYTES]

    def test_endless_headers_are_no_answer(self) -> None:
        def headers(_: Request, wire: Wire) -> None:
            wire.sendall(b"HTTP/1.1 200 OK\r\n")
            while True:
                wire.sendall(b"X-More: " + b"y" * 1000 + b"\r\n")

        with endpoint(headers) as server, within(2), pytest.raises(NoAnswer):
            post(server.url)

    @pytest.mark.parametrize(
        "said", [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"\0\0\xff", b"HTTP/1.1 2xx OK\r\n\r\n"]
    )
    def test_what_speaks_no_http_is_no_answer(self, said: bytes) -> None:
        def behave(_: Request, wire: Wire) -> None:
            wire.sendall(said)

        with endpoint(behave) as server, pytest.raises(NoAnswer):
            post(server.url)


class TestWhatWasSent:
    def test_a_port_where_nobody_listens(self) -> None:
        with endpoint() as server:
            url = server.url
        with pytest.raises(NotSent, match="refused"):
            post(url)

    def test_a_name_that_nobody_knows(self) -> None:
        def resolve(host: str, port: int) -> Sequence[tuple[Any, ...]]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        with pytest.raises(NotSent, match=r"nobody\.example cannot be resolved"):
            post("http://nobody.example/", client=Client(resolve=resolve))

    def test_a_connection_that_ends_after_the_request(self) -> None:
        with endpoint(hang_up) as server, pytest.raises(NoAnswer):
            post(server.url)

    def test_an_answer_that_ends_in_the_middle(self) -> None:
        def behave(_: Request, wire: Wire) -> None:
            wire.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

        with endpoint(behave) as server, pytest.raises(NoAnswer):
            post(server.url)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For `billing.example`, by an authority of its own."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "billing.example")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("billing.example")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "cert.pem").write_bytes(made.public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(*pem))
    return folder


class TestTls:
    """Addresses come from a resolver of the test."""

    @pytest.fixture
    def server(self, certificate: Path) -> Iterator[Endpoint]:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
        with endpoint(tls=tls) as made:
            yield made

    @pytest.fixture
    def trusted(self, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
        outbound._ssl_context.cache_clear()
        yield
        outbound._ssl_context.cache_clear()

    def test_the_name_is_verified_though_the_address_is_called(self, server: Endpoint, trusted: None) -> None:
        client = Client(allowed=LOOPBACK, resolve=addresses("127.0.0.1"))
        assert post(f"https://billing.example:{server.port}/", client=client).status == 200
        with pytest.raises(NotSent, match="TLS"):
            post(f"https://other.example:{server.port}/", client=client)
        assert len(server.requests) == 1

    def test_an_unknown_authority_gets_nothing(self, server: Endpoint) -> None:
        client = Client(allowed=LOOPBACK, resolve=addresses("127.0.0.1"))
        with pytest.raises(NotSent, match="TLS"):
            post(f"https://billing.example:{server.port}/", client=client)
        assert server.requests == []

    def test_silence_is_noticed_through_tls_too(self, server: Endpoint, trusted: None) -> None:
        server.behave = hang
        client = Client(allowed=LOOPBACK, resolve=addresses("127.0.0.1"))
        with within(1.2), pytest.raises(NoAnswer, match=r"no answer within 1\.2 s"):
            post(f"https://billing.example:{server.port}/", client=client, timeout_s=1.2)


_ELSEWHERE = """
import json, socket, sys
if sys.argv[1] == "gevent":
    from gevent import monkey
    monkey.patch_all()
from scheduler.core.networks import networks_of
from scheduler.worker.outbound import Client, Denied, NoAnswer
client = Client(
    allowed=networks_of("127.0.0.0/8"),
    resolve=lambda host, port: socket.getaddrinfo("127.0.0.1", port, type=socket.SOCK_STREAM),
)

def calls():
    told = [client.post(url, {}, b"{}", timeout_s=10).status for url in (sys.argv[2], sys.argv[4])]
    for url, caller in ((sys.argv[3], client), (sys.argv[2], Client())):
        try:
            caller.post(url, {}, b"{}", timeout_s=1)
        except (NoAnswer, Denied) as error:
            told.append(type(error).__name__)
    return told

if sys.argv[1] == "prefork":
    import billiard
    with billiard.Pool(1) as pool:
        print(json.dumps(pool.apply(calls)))
else:
    print(json.dumps(calls()))
"""


@pytest.mark.parametrize("pool", ["gevent", "prefork"])
def test_it_is_the_same_in_every_pool(pool: str, certificate: Path, tmp_path: Path) -> None:
    """Over TLS too, where the answer comes after two slices of waiting."""

    def slow(request: Request, wire: Wire) -> None:
        threading.Event().wait(2.2 * outbound.SLICE_S)
        answer(200)(request, wire)

    script = tmp_path / "calls.py"
    script.write_text(_ELSEWHERE)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    with endpoint() as server, endpoint(hang) as silent, endpoint(slow, tls=tls) as secure:
        url = f"https://billing.example:{secure.port}/"
        trusted = {"SSL_CERT_FILE": str(certificate / "cert.pem"), "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(
            [sys.executable, str(script), pool, server.url, silent.url, url],
            env={**os.environ, **trusted},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [200, 200, "NoAnswer", "Denied"]
