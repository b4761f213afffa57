"""The folder that is the broker of a try-out: a reader never meets half a message."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty
from typing import Any

import kombu
import pytest

from scheduler import folder_transport

QUEUE = "fencepost.default.normal"
MESSAGES = 300


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[kombu.Connection]:
    folder_transport.register()
    options = {
        "data_folder_in": str(tmp_path / "queue"),
        "data_folder_out": str(tmp_path / "queue"),
        "control_folder": str(tmp_path / "control"),
    }
    (tmp_path / "queue").mkdir()
    with kombu.Connection(f"filesystem://localhost{tmp_path}", transport_options=options) as opened:
        yield opened


def test_a_reader_beside_a_writer_gets_every_message_whole(connection: kombu.Connection) -> None:
    reader, writer = connection.channel(), connection.channel()

    def write() -> None:
        for number in range(MESSAGES):
            writer._put(QUEUE, {"number": number, "body": "x" * 100_000})

    found: set[int] = set()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not writing.done() or reader._size(QUEUE):
            found |= {message["number"] for message in _next(reader)}
        writing.result()
    assert found == set(range(MESSAGES))


def test_what_is_left_of_a_message_stops_nobody(connection: kombu.Connection, tmp_path: Path) -> None:
    channel = connection.channel()
    (tmp_path / "queue" / f"0_torn.{QUEUE}.msg").touch()
    channel._put(QUEUE, {"number": 1})
    assert list(_next(channel)) == []
    assert list(_next(channel)) == [{"number": 1}]


def _next(channel: Any) -> Iterator[dict[str, Any]]:
    try:
        yield channel._get(QUEUE)
    except Empty:
        return
