"""A nameserver that answers what a test says, as none should: another address each time, an alias, never."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address

A, CNAME, AAAA = 1, 5, 28

Reply = Callable[["Question"], bytes | None]


@dataclass(frozen=True, kw_only=True)
class Question:
    """`raw`: the question's section as it came; `name` without the last dot; `kind`: A or AAAA."""

    id: bytes
    name: str
    kind: int
    raw: bytes


def addresses(*texts: str) -> Reply:
    """Those of the kind that is asked for; a name among them is an alias that the others belong to."""

    def reply(question: Question) -> bytes:
        owner, records = b"\xc0\x0c", []
        for text in texts:
            if text.endswith(".test"):
                alias = _labels(text)
                records.append(_record(owner, CNAME, alias))
                owner = alias
                continue
            address = ip_address(text)
            if question.kind == (A if address.version == 4 else AAAA):
                records.append(_record(owner, question.kind, address.packed))
        return _message(question, records)

    return reply


def in_turn(*replies: Reply) -> Reply:
    """The first one to the first question of each kind, and so on; the last one for ever."""
    asked: dict[int, int] = {}

    def reply(question: Question) -> bytes | None:
        turn = asked.get(question.kind, 0)
        asked[question.kind] = turn + 1
        return replies[min(turn, len(replies) - 1)](question)

    return reply


def silence(_: Question) -> None:
    return None


def nonsense(question: Question) -> bytes:
    """Claims seven answers and has none."""
    return question.id + struct.pack("!HHHHH", 0x8180, 1, 7, 0, 0) + question.raw + b"\xc0\xff\xff"


@dataclass(kw_only=True)
class Nameserver:
    """`asked`: the names of all questions, in the order in which they came."""

    names: dict[str, Reply]
    asked: list[str] = field(default_factory=list)

    def reply(self, message: bytes) -> bytes | None:
        name, end = _read_name(message, 12)
        kind = struct.unpack("!H", message[end : end + 2])[0]
        self.asked.append(name)
        question = Question(id=message[:2], name=name, kind=kind, raw=message[12 : end + 4])
        return self.names.get(name, addresses())(question)


@contextmanager
def nameserver(names: dict[str, Reply]) -> Iterator[Nameserver]:
    """On loopback's port 53: for a network namespace."""
    served = Nameserver(names=names)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
        wire.bind(("127.0.0.1", 53))
        thread = threading.Thread(target=_serve, args=(served, wire), daemon=True)
        thread.start()
        yield served
        wire.sendto(b"", ("127.0.0.1", 53))
        thread.join(10)


def _serve(served: Nameserver, wire: socket.socket) -> None:
    while True:
        message, asker = wire.recvfrom(4096)
        if not message:
            return
        reply = served.reply(message)
        if reply is not None:
            wire.sendto(reply, asker)


def _message(question: Question, records: list[bytes]) -> bytes:
    head = struct.pack("!HHHHH", 0x8180, 1, len(records), 0, 0)
    return question.id + head + question.raw + b"".join(records)


def _record(owner: bytes, kind: int, data: bytes) -> bytes:
    return owner + struct.pack("!HHIH", kind, 1, 0, len(data)) + data


def _labels(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def _read_name(message: bytes, at: int) -> tuple[str, int]:
    labels = []
    while length := message[at]:
        labels.append(message[at + 1 : at + 1 + length].decode())
        at += 1 + length
    return ".".join(labels), at + 1
