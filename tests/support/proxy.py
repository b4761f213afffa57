"""A TCP proxy between the product and a server, which can fail in the ways a network does.

What it did is counted in `done`: a fault that was armed and never delivered has shown nothing.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

CHUNK = 64 * 1024
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of zero seconds: close sends RST instead of FIN

Address: TypeAlias = tuple[str, int] | str  # host and port, or the path of a Unix socket
Stream: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Mode(Enum):
    PASS = "pass"
    BLACK_HOLE = "black hole"  # half-open: everything is accepted, nothing arrives, and nobody is told
    DROP_ANSWERS = "drop answers"  # what the server says no longer arrives


@dataclass(eq=False, kw_only=True)
class _Link:
    """One connection of a client's. A direction that has lost bytes stays deaf: a stream does not heal."""

    client: Stream
    server: Stream | None = None
    deaf: set[str] = field(default_factory=set)
    doomed: bool = False  # its next answer is lost, and then it is reset

    def streams(self) -> list[Stream]:
        return [self.client] if self.server is None else [self.client, self.server]


class Proxy:
    """Listens on `port` until `stop`. Modes may be switched at any time, from any thread."""

    def __init__(self, upstream: Address) -> None:
        self.done: Counter[str] = Counter()
        self.mode = Mode.PASS
        self.delay_s = 0.0
        self._upstream = upstream
        self._fatal_word: bytes | None = None
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    # ---- what a test asks for -------------------------------------------------------------------------

    @contextlib.contextmanager
    def failing(self, mode: Mode) -> Iterator[None]:
        self.mode = mode
        try:
            yield
        finally:
            self.mode = Mode.PASS

    def lose_answer_to(self, word: bytes) -> None:
        """Once: the next words of a client that contain this one reach the server, and instead of the
        server's answer the client gets a reset.
        """
        self._fatal_word = word

    def reset(self) -> None:
        """RST on every connection there is."""
        self._on_every_link(self._reset)

    def half_close(self) -> None:
        """The server's end of every connection says that it will say no more, and still listens."""
        self._on_every_link(self._half_close)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        assert not self._thread.is_alive()

    # ---- connections ----------------------------------------------------------------------------------

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, sock=self._listener))
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _close(self) -> None:
        for link in list(self._links):
            self._reset(link)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        link = _Link(client=(reader, writer))
        self._links.add(link)
        self.done["connections"] += 1
        try:
            await self._serve(link)
        except (OSError, asyncio.CancelledError):
            self._reset(link)
        finally:
            self._links.discard(link)
            self._tasks.discard(task)
            for _, either in link.streams():
                either.close()

    async def _serve(self, link: _Link) -> None:
        if self.mode is Mode.BLACK_HOLE:
            link.deaf |= {"to server", "to client"}
            await self._pump(link, "to server", link.client[0], None)
            return
        link.server = await self._reach()
        await asyncio.gather(
            self._pump(link, "to server", link.client[0], link.server[1]),
            self._pump(link, "to client", link.server[0], link.client[1]),
        )

    async def _reach(self) -> Stream:
        if isinstance(self._upstream, str):
            return await asyncio.open_unix_connection(self._upstream)
        return await asyncio.open_connection(*self._upstream)

    async def _pump(
        self, link: _Link, way: str, source: asyncio.StreamReader, sink: asyncio.StreamWriter | None
    ) -> None:
        while chunk := await source.read(CHUNK):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if sink is None or self._swallows(link, way, chunk):
                self.done[f"bytes lost {way}"] += len(chunk)
                continue
            sink.write(chunk)
            await sink.drain()
        if sink is not None and not self._is_deaf(link, way):
            with contextlib.suppress(OSError):  # the other end has gone already
                sink.write_eof()

    # ---- faults ---------------------------------------------------------------------------------------

    def _swallows(self, link: _Link, way: str, chunk: bytes) -> bool:
        if way == "to client" and link.doomed:
            self.done["answers lost"] += 1
            self._reset(link)
            return True
        if way == "to server" and self._fatal_word is not None and self._fatal_word in chunk:
            self._fatal_word, link.doomed = None, True
        return self._is_deaf(link, way)

    def _is_deaf(self, link: _Link, way: str) -> bool:
        """What swallows words swallows the end as well: no FIN comes out of a black hole."""
        if self.mode is Mode.BLACK_HOLE or (self.mode is Mode.DROP_ANSWERS and way == "to client"):
            link.deaf.add(way)
        return way in link.deaf

    def _on_every_link(self, act: Callable[[_Link], None]) -> None:
        async def all_of_them() -> None:
            for link in list(self._links):
                act(link)

        asyncio.run_coroutine_threadsafe(all_of_them(), self._loop).result(10)

    def _reset(self, link: _Link) -> None:
        for _, writer in link.streams():
            with contextlib.suppress(OSError):
                plug = writer.get_extra_info("socket")
                if plug.family != socket.AF_UNIX:
                    plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()
        self.done["resets"] += 1

    def _half_close(self, link: _Link) -> None:
        link.client[1].write_eof()
        self.done["half closed"] += 1
