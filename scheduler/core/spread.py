"""Where in its flexible window a schedule is dispatched: spread over schedules, the same every time."""

from datetime import timedelta
from hashlib import blake2b
from typing import Final
from uuid import UUID

_SPAN: Final = 2**64
_AT_ONCE: Final = timedelta(0)


def dispatch_offset(schedule_id: UUID, window_s: int) -> timedelta:
    """In [0, window), whole milliseconds: a function of the id alone, so that every host says the same."""
    if window_s == 0:
        return _AT_ONCE
    place = int.from_bytes(blake2b(schedule_id.bytes, digest_size=8).digest())
    return timedelta(milliseconds=place * window_s * 1000 // _SPAN)
