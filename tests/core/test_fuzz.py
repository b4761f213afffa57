"""Hostile triggers and dates by the thousand: an answer or a TriggerError, in a bounded number of steps."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler.core.cron import CronExpression
from scheduler.core.triggers import Trigger, TriggerError, parse_trigger

TRIALS = 10_000
MOST_PROBES = 3 * (60 * 12 + 1) + 100  # expressions, each through the 60 years of a search
PIECES = [
    *"0123456789*/-,?#LW ",
    *["59", "60", "31", "29", "2", "12", "13", "23", "24", "MON", "FEB", "fri#5", "15W", "LW", "L-30", "5L"],
    *["@daily", "@reboot", "\u0660", "\x00", "\ud800", "1e9", "--", "1-", "*/0", "22-2", "0/7", "9" * 20],
]
ZONES = ["UTC", "Europe/Berlin", "Pacific/Apia", "Africa/Casablanca", "Australia/Lord_Howe", "../etc", ""]
DATES = ["2026-02-30", "2026-12-24", "0000-01-01", "2199-12-31", "9999-12-31", "2026-1-1", "", "\ud800"]
TIMES = [
    *["2026-02-29T00:00:00Z", "1899-12-31T23:59:59Z", "2199-12-31T23:59:59Z"],
    *["2026-03-29T02:30:00", "24:00", ""],
]
RULES = [
    *["FREQ=DAILY", "FREQ=", "FREQ=MONTHLY;BYMONTHDAY=31;BYMONTH=2", "FREQ=YEARLY;BYDAY=53MO"],
    *["COUNT=0", "X" * 500],
]
ODD = [None, True, -1, 0, 2**70, 1.5, float("nan"), [], {}, "x", [[]], {"a": {}}]
INSTANTS = [
    datetime(1900, 1, 1, tzinfo=UTC),
    datetime(1942, 5, 5, 5, 5, tzinfo=UTC),
    datetime(2026, 3, 29, 1, tzinfo=UTC),
    datetime(2011, 12, 30, 10, tzinfo=UTC),
    datetime(2199, 12, 31, 23, 59, 59, tzinfo=UTC),
    datetime.max.replace(tzinfo=UTC) - timedelta(days=2),
    datetime.min.replace(tzinfo=UTC) + timedelta(days=2),
]


def _expression(chance: random.Random) -> str:
    if chance.random() < 0.2:
        return "".join(chance.choices(PIECES, k=chance.randint(0, 12)))
    return " ".join("".join(chance.choices(PIECES[:35], k=chance.randint(1, 3))) for _ in range(5))


def _plausible(chance: random.Random) -> str:
    """Mostly accepted, often rare."""
    day = chance.choice(["*", "31", "29", "L", "15W", "31W", "LW", "1-7", "30,31"])
    month = chance.choice(["*", "2", "FEB", "4,6,9,11", "NOV-FEB"])
    weekday = chance.choice(["*", "MON#5", "5L", "FRI-MON", "0", "SAT"])
    return f"{chance.randint(0, 59)} {chance.randint(0, 23)} {day} {month} {weekday}"


def _body(kind: str, chance: random.Random) -> dict[str, Any]:
    zone, at = chance.choice(ZONES), chance.choice(TIMES)
    if kind == "once":
        return {"at": at, "timezone": zone}
    if kind == "interval":
        return {"every_s": chance.choice([1, 86400, 10**9, *ODD]), "anchor": at}
    if kind == "rrule":
        return {"rule": chance.choice(RULES), "dtstart": at, "timezone": zone}
    make = _plausible if chance.random() < 0.5 else _expression
    return {"expressions": [make(chance) for _ in range(chance.randint(0, 3))], "timezone": zone}


def _trigger(chance: random.Random) -> Any:
    (kind,) = chance.choices(["cron", "once", "interval", "rrule"], weights=[7, 1, 1, 1])
    body = _body(kind, chance)
    if chance.random() < 0.1:
        body[chance.choice([*body, "dst", "day_match", "\ud800"])] = chance.choice(ODD)
    return {kind: body} if chance.random() > 0.02 else chance.choice(ODD)


def _bounds(chance: random.Random) -> dict[str, Any]:
    span = {"from": chance.choice(DATES), "to": chance.choice(DATES)}
    entries = [{"date": chance.choice(DATES)}, span, {}, "x"]
    return {
        "exclusions": [chance.choice(entries)] if chance.random() < 0.2 else [],
        "on_excluded": chance.choice([None, "skip", "next_business_day", "never"]),
        "end_at": chance.choice(TIMES) if chance.random() < 0.1 else None,
    }


def _parsed(document: Any, bounds: dict[str, Any]) -> Trigger | None:
    """None: refused, and well."""
    try:
        return parse_trigger(document, **bounds)
    except TriggerError as refused:
        told = (refused.field, refused.code, str(refused))
    assert all(told)
    "".join(told).encode()
    return None


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the months whose days a search looks at."""
    counted, days = [0], CronExpression._days

    def counting(self: CronExpression, year: int, month: int) -> tuple[int, ...]:
        counted[0] += 1
        return days(self, year, month)

    monkeypatch.setattr(CronExpression, "_days", counting)
    return counted


def test_ten_thousand_hostile_triggers_are_answered_or_refused(probes: list[int]) -> None:
    chance = random.Random(20261130)
    accepted = 0
    for _ in range(TRIALS):
        document, bounds = _trigger(chance), _bounds(chance)
        trigger = _parsed(document, bounds)
        if trigger is None:
            continue
        accepted += 1
        for instant in chance.sample(INSTANTS, 3):
            probes[0] = 0
            following = trigger.next_after(instant)
            assert following is None or following > instant
            preceding = trigger.previous_at_or_before(instant)
            assert preceding is None or preceding <= instant
            assert probes[0] <= MOST_PROBES, document
    assert accepted > TRIALS // 10
