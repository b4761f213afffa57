"""The harness itself: each fault of the proxy is what its name says, seen from both ends."""

import socket
from collections.abc import Iterator

import pytest

from tests.support.proxy import Mode, Proxy
from tests.support.wait import wait_until

SOON = 0.2


class Ends:
    """Both ends of connections through a proxy."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.proxy = Proxy(("127.0.0.1", self.listener.getsockname()[1]))
        self.opened: list[socket.socket] = []

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """The client's socket and the server's."""
        client = self.dial()
        server, _ = self.listener.accept()
        server.settimeout(5)
        self.opened.append(server)
        return client, server

    def dial(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.proxy.port), timeout=5)
        self.opened.append(client)
        return client

    def close(self) -> None:
        self.proxy.stop()
        for plug in (*self.opened, self.listener):
            plug.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def assert_silent(plug: socket.socket) -> None:
    plug.settimeout(SOON)
    with pytest.raises(TimeoutError):
        plug.recv(1)


def test_it_passes_words_and_ends_on(ends: Ends) -> None:
    client, server = ends.connect()
    client.sendall(b"question")
    assert server.recv(100) == b"question"
    server.sendall(b"answer")
    server.close()
    assert (client.recv(100), client.recv(100)) == (b"answer", b"")


def test_delayed_words_arrive_later(ends: Ends) -> None:
    ends.proxy.delay_s = 3 * SOON
    client, server = ends.connect()
    client.sendall(b"question")
    assert_silent(server)
    server.settimeout(5)
    assert server.recv(100) == b"question"


def test_a_black_hole_tells_nobody_and_does_not_heal(ends: Ends) -> None:
    client, server = ends.connect()
    ends.proxy.mode = Mode.BLACK_HOLE
    client.sendall(b"question")
    late = ends.dial()
    late.sendall(b"hello?")
    wait_until(lambda: ends.proxy.done["bytes lost to server"] == len(b"questionhello?"))
    server.close()
    assert_silent(client)
    ends.proxy.mode = Mode.PASS
    client.sendall(b"and now?")
    assert_silent(client)
    assert_silent(late)
    fresh, other = ends.connect()
    fresh.sendall(b"anew")
    assert other.recv(100) == b"anew"


def test_dropped_answers_leave_questions_alone(ends: Ends) -> None:
    client, server = ends.connect()
    ends.proxy.mode = Mode.DROP_ANSWERS
    client.sendall(b"question")
    assert server.recv(100) == b"question"
    server.sendall(b"answer")
    wait_until(lambda: ends.proxy.done["bytes lost to client"] == len(b"answer"))
    assert_silent(client)


def test_reset_is_no_polite_end(ends: Ends) -> None:
    client, server = ends.connect()
    client.sendall(b"question")
    assert server.recv(100) == b"question"
    ends.proxy.reset()
    for plug in (client, server):
        with pytest.raises(ConnectionResetError):
            plug.recv(1)
    assert ends.proxy.done["resets"] == 1


def test_a_half_closed_connection_still_listens(ends: Ends) -> None:
    client, server = ends.connect()
    client.sendall(b"question")
    assert server.recv(100) == b"question"
    ends.proxy.half_close()
    assert client.recv(1) == b""
    client.sendall(b"more")
    assert server.recv(100) == b"more"


def test_the_answer_to_one_word_is_lost_once(ends: Ends) -> None:
    client, server = ends.connect()
    ends.proxy.lose_answer_to(b"COMMIT")
    for word in (b"BEGIN", b"COMMIT"):
        client.sendall(word)
        assert server.recv(100) == word
        if word == b"BEGIN":
            server.sendall(b"OK")
            assert client.recv(100) == b"OK"
    server.sendall(b"OK")
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert ends.proxy.done["answers lost"] == 1
    client, server = ends.connect()
    client.sendall(b"COMMIT")
    server.recv(100)
    server.sendall(b"OK")
    assert client.recv(100) == b"OK"
