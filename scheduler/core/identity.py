"""Ids that say where they belong: run ids carry their due instant, shards come from a hash of the id."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid5
from zlib import crc32

NOMINAL = UUID(int=0)  # origin_key of a run that nobody asked for: its schedule did
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MILLISECOND = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_KEYS = UUID("6f1d8a52-1f0e-4d0c-9c55-0f5c2b4f7a11")


def whole_millisecond(instant: datetime) -> datetime:
    """Due instants are whole milliseconds, so that a run id holds all of them."""
    return instant.replace(microsecond=instant.microsecond // 1000 * 1000)


def run_id(due_at: datetime, randomness: bytes) -> UUID:
    """A UUIDv7 (RFC 9562) whose time is `due_at`. `randomness`: 10 bytes."""
    milliseconds = (due_at - _EPOCH) // timedelta(milliseconds=1)
    value = (milliseconds << 80) | int.from_bytes(randomness)
    value = value & ~(0xF << 76) | (0x7 << 76)
    value = value & ~(0x3 << 62) | (0x2 << 62)
    return UUID(int=value)


def due_at_of(run_id: UUID) -> datetime:
    """The due instant in a run id: enough to find its partition. Any UUID gives some instant: one that is
    no run id may say the year 10889, and is then sought at the end of time.
    """
    return _EPOCH + timedelta(milliseconds=min(run_id.int >> 80, _LAST_MILLISECOND))


def shard_of(schedule_id: UUID, shards: int = 256) -> int:
    """crc32, for the leading bytes of a UUIDv7 are a clock and would skew."""
    return crc32(schedule_id.bytes) % shards


def idempotency_key(due_at: datetime, schedule_id: UUID, revision: int, origin_key: UUID) -> str:
    """Stable across the attempts of a run, so that a target can recognise a repetition."""
    identity = f"{due_at.astimezone(UTC).isoformat()}/{schedule_id}/{revision}/{origin_key}"
    return str(uuid5(_KEYS, identity))


def sub_key(key: str, name: str) -> str:
    """One of several effects within a run."""
    return str(uuid5(UUID(key), name))
