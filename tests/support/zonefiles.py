"""A tzdata wheel with rules of our own: an update of the zone data for processes that are started with it."""

import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import tzdata

VERSION = "2099.1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Jump:
    """A zone of one offset, whose clock is moved at an instant, for ever."""

    offset: timedelta
    at: datetime
    by: timedelta


def updated_wheel(folder: Path, zones: Mapping[str, Jump]) -> dict[str, str]:
    """The installed wheel with these zones replaced; what a process needs in its environment to read it."""
    package = folder / "tzdata"
    shutil.copytree(Path(tzdata.__file__).parent, package)
    for zone, jump in zones.items():
        (package / "zoneinfo" / zone).write_bytes(_tzif(jump))
    described = folder / f"tzdata-{VERSION}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tzdata\nVersion: {VERSION}\n")
    return {"PYTHONPATH": str(folder)}


def _tzif(jump: Jump) -> bytes:
    """RFC 9636: an empty block for readers of version 1, one transition between two types, a footer."""
    before, after = (int(offset.total_seconds()) for offset in (jump.offset, jump.offset + jump.by))
    names = b"OLD\x00NEW\x00"
    types = struct.pack(">lBB", before, 0, 0) + struct.pack(">lBB", after, 0, 4)
    transitions = struct.pack(">qB", int(jump.at.timestamp()), 1)
    empty = _header(transitions=0, types=1, characters=1) + struct.pack(">lBB", 0, 0, 0) + b"\x00"
    block = _header(transitions=1, types=2, characters=len(names)) + transitions + types + names
    return empty + block + f"\n<NEW>{_posix(after)}\n".encode()


def _header(*, transitions: int, types: int, characters: int) -> bytes:
    return b"TZif2" + bytes(15) + struct.pack(">6l", 0, 0, 0, transitions, types, characters)


def _posix(offset_s: int) -> str:
    """POSIX counts offsets westward."""
    sign, seconds = ("-" if offset_s > 0 else ""), abs(offset_s)
    return f"{sign}{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
