"""What the resolution of wall time assumes of zones, and what it makes of the odd ones."""

import struct
import zoneinfo
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from importlib.resources import files
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from scheduler.core import dst
from scheduler.core.dst import DstPolicy, Nonexistent, Repeated

HEADER = 44


def _counts(data: bytes, at: int) -> tuple[int, ...]:
    return struct.unpack(">6l", data[at + 20 : at + HEADER])


def _changes_of_offset(key: str) -> Iterator[int]:
    """Epoch seconds of the changes that the zone's TZif file lists (RFC 8536, version 2 block)."""
    data = files("tzdata.zoneinfo").joinpath(key).read_bytes()
    utc, standard, leaps, times, types, letters = _counts(data, 0)
    second = HEADER + times * 5 + types * 6 + letters + leaps * 8 + standard + utc
    *_, times, types, _ = _counts(data, second)
    begin = second + HEADER
    moments = struct.unpack(f">{times}q", data[begin : begin + 8 * times])
    indexes = data[begin + 8 * times : begin + 9 * times]
    table = begin + 9 * times
    offsets = [struct.unpack(">l", data[table + 6 * i : table + 6 * i + 4])[0] for i in range(types)]
    for (_, before), (moment, after) in pairwise(zip(moments, indexes, strict=True)):
        if offsets[before] != offsets[after]:
            yield moment


def test_the_rules_come_from_the_pinned_wheel() -> None:
    assert zoneinfo.TZPATH == ()


def test_no_zone_moves_its_clock_twice_within_six_days() -> None:
    """A date has at most one jump only as long as this holds."""
    gaps = {
        key: min((right - left for left, right in pairwise(_changes_of_offset(key))), default=10**9)
        for key in zoneinfo.available_timezones()
    }
    assert len(gaps) > 500
    assert min(gaps.values()) > timedelta(days=6).total_seconds()


@pytest.mark.parametrize("key", ["Europe/Dublin", "Pacific/Apia", "Australia/Lord_Howe", "Africa/Casablanca"])
def test_every_listed_jump_is_found_to_the_second(key: str) -> None:
    listed = {moment for moment in _changes_of_offset(key) if moment > 0}
    begin, zone = date(1970, 1, 1), ZoneInfo(key)
    days = (begin + timedelta(days=index) for index in range((date(2037, 1, 1) - begin).days))
    found = {int(jump.at.timestamp()) for day in days if (jump := dst.jump_at(zone, day)) is not None}
    assert listed == {moment for moment in found if moment <= max(listed)}  # later ones follow a rule


@pytest.mark.parametrize(
    ("local", "zone", "at"),
    [
        ("2026-03-29T02:30:00", "Europe/Berlin", "2026-03-29T01:00:00Z"),
        ("2026-10-25T02:30:00", "Europe/Berlin", "2026-10-25T00:30:00Z"),
        ("2011-12-30T12:00:00", "Pacific/Apia", "2011-12-30T10:00:00Z"),
        ("2010-03-14T00:30:00", "America/St_Johns", "2010-03-14T03:31:00Z"),
        ("2026-07-01T09:00:00", "Asia/Kathmandu", "2026-07-01T03:15:00Z"),
    ],
)
def test_a_single_local_time_is_taken_as_a_daily_job_would(local: str, zone: str, at: str) -> None:
    wall = datetime.fromisoformat(local)
    assert dst.time_of_day(wall, ZoneInfo(zone)) == datetime.fromisoformat(at)


@pytest.mark.parametrize(
    ("policy", "rolling", "judged"),
    [
        (DstPolicy(), True, ("skip", "both")),
        (DstPolicy(), False, ("shift_forward", "first")),
        (DstPolicy(nonexistent=Nonexistent.SKIP), False, ("skip", "first")),
        (DstPolicy(repeated=Repeated.SECOND), True, ("skip", "second")),
    ],
)
def test_auto_asks_what_the_expression_means(
    policy: DstPolicy, rolling: bool, judged: tuple[str, str]
) -> None:
    decided = policy.judged(rolling=rolling)
    assert (decided.nonexistent, decided.repeated) == judged
