"""Recurrence rules: read as dateutil reads them, under the DST rules of cron, or refused by field."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from dateutil.rrule import rrulestr
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from scheduler.core.triggers import Trigger, TriggerError, parse_trigger

START = datetime(2026, 1, 31, 9, 15, 5)  # noqa: DTZ001 - DTSTART is a local time


def rule(text: str, dtstart: datetime | str = START, zone: str = "UTC", **more: Any) -> Trigger:
    start = dtstart if isinstance(dtstart, str) else dtstart.isoformat()
    return parse_trigger({"rrule": {"rule": text, "dtstart": start, "timezone": zone, **more}})


def by_dateutil(text: str, start: datetime, days: int) -> list[datetime]:
    end = start + timedelta(days=days)
    found = rrulestr(text, dtstart=start).between(start, end, inc=True)
    return [local.replace(tzinfo=UTC) for local in found if local < end]


def by_us(text: str, start: datetime, days: int) -> list[datetime]:
    begin = start.replace(tzinfo=UTC)
    return list(rule(text, start).between(begin - timedelta(days=400), begin + timedelta(days=days)))


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("FREQ=DAILY", 30),
        ("RRULE:FREQ=DAILY;INTERVAL=3;BYHOUR=8,20;BYMINUTE=0,30;BYSECOND=0", 40),
        ("FREQ=WEEKLY", 60),
        ("FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,SU;WKST=SU", 90),
        ("FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,SU;WKST=MO", 90),
        ("FREQ=MONTHLY", 800),
        ("FREQ=MONTHLY;BYDAY=2TU,-1FR", 400),
        ("FREQ=MONTHLY;INTERVAL=5;BYMONTHDAY=-1,15", 900),
        ("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1", 400),
        ("FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13", 1500),
        ("FREQ=MONTHLY;BYDAY=SA;BYHOUR=6,18;BYSETPOS=2,-2", 400),
        ("FREQ=YEARLY", 1500),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29", 3000),
        ("FREQ=YEARLY;BYDAY=20MO", 1500),
        ("FREQ=YEARLY;BYDAY=-1SU;BYMONTH=3,10", 1500),
        ("FREQ=YEARLY;BYYEARDAY=1,100,-1", 1500),
        ("FREQ=YEARLY;BYDAY=TU;BYSETPOS=1,-1", 1500),
        ("FREQ=YEARLY;INTERVAL=3;BYMONTH=1,7", 3000),
        ("FREQ=YEARLY;BYWEEKNO=1,53;BYDAY=MO,SU", 3000),
        ("FREQ=YEARLY;BYWEEKNO=20,-1;BYDAY=TU,SA;WKST=SU", 3000),
        ("FREQ=YEARLY;INTERVAL=2;BYWEEKNO=9,10;BYMONTH=3;BYDAY=MO,FR", 3000),
        ("FREQ=YEARLY;BYWEEKNO=10,11,12;BYDAY=WE;BYSETPOS=-1", 3000),
        ("FREQ=HOURLY;INTERVAL=7", 20),
        ("FREQ=HOURLY;BYMINUTE=5,20,50;BYSETPOS=-1", 5),
        ("FREQ=HOURLY;INTERVAL=5;BYMINUTE=5,50;BYSECOND=0,30;BYSETPOS=1,3", 10),
        ("FREQ=MINUTELY;INTERVAL=90;BYSECOND=5,10;BYSETPOS=2", 5),
        ("FREQ=HOURLY;BYHOUR=9,10,11;BYMINUTE=0,30;BYDAY=MO", 40),
        ("FREQ=MINUTELY;INTERVAL=100", 10),
        ("FREQ=MINUTELY;INTERVAL=7;BYHOUR=3,4;BYMINUTE=0,7,14,28", 30),
        ("FREQ=SECONDLY;INTERVAL=4999", 5),
        ("FREQ=DAILY;COUNT=10", 60),
        ("FREQ=HOURLY;INTERVAL=5;COUNT=17", 60),
        ("FREQ=DAILY;UNTIL=20260301T091505", 60),
    ],
)
def test_reads_a_rule_as_dateutil_does(text: str, days: int) -> None:
    expected = by_dateutil(text, START, days)
    assert expected
    assert by_us(text, START, days) == expected


@st.composite
def rules(draw: st.DrawFn) -> str:
    frequency = draw(st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY"]))
    parts = [f"FREQ={frequency}", f"INTERVAL={draw(st.integers(1, 4))}"]
    weekdays = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]
    if frequency in ("YEARLY", "MONTHLY") and draw(st.booleans()):
        weekdays = ["1MO", "-1FR", "2WE", "5SU"]
    choices = {
        "BYMONTH": st.integers(1, 12),
        "BYMONTHDAY": st.sampled_from([1, 2, 13, 28, 31, -1, -3]),
        "BYDAY": st.sampled_from(weekdays),
        "BYHOUR": st.integers(0, 23),
        "BYMINUTE": st.integers(0, 59),
        "BYSETPOS": st.sampled_from([1, 2, -1]),
    }
    for name in draw(st.sets(st.sampled_from(sorted(choices)), max_size=3)):
        values = draw(st.lists(choices[name], min_size=1, max_size=3, unique=True))
        parts.append(f"{name}={','.join(map(str, values))}")
    return ";".join(parts)


# No shrinking: dateutil may search for minutes in what a smaller rule leaves.
@settings(max_examples=60, deadline=None, phases=[Phase.generate])
@given(rules())
def test_reads_any_rule_as_dateutil_does(text: str) -> None:
    days = 15 if "HOURLY" in text or "MINUTELY" in text else 700
    try:
        found = by_us(text, START, days)
    except TriggerError as refused:
        if refused.code != "never_fires":
            raise
        return
    if found:  # dateutil would search up to the year 9999 for what is not there
        assert by_dateutil(text, START, days)[: len(found)] == found


def test_numbered_and_plain_weekdays_are_a_union_as_the_rfc_says() -> None:
    found = by_us("FREQ=MONTHLY;BYDAY=MO,2WE", START, 29)
    assert [f"{local:%m-%d}" for local in found] == ["02-02", "02-09", "02-11", "02-16", "02-23"]
    assert by_dateutil("FREQ=MONTHLY;BYDAY=MO,2WE", START, 29) == []  # dateutil asks for both at once


@pytest.mark.parametrize("number", [1, 27, 52, 53])
def test_weeks_are_those_of_the_iso_calendar(number: int) -> None:
    """From 2025 to 2054: every kind of year, on both of its ends."""
    weekly = rule(f"FREQ=YEARLY;BYWEEKNO={number};BYDAY=MO,SU", "2025-01-01T00:00:00")
    days = (datetime(2025, 1, 1, tzinfo=UTC) + timedelta(days=day) for day in range(30 * 365))
    expected = [day for day in days if day.isocalendar()[1] == number and day.weekday() in (0, 6)]
    assert list(weekly.between(expected[0], expected[-1])) == expected[:-1]


def test_weeks_are_counted_from_the_end_of_a_year_as_well() -> None:
    last = rule("FREQ=YEARLY;BYWEEKNO=-1;BYDAY=SU", "2026-01-01T00:00:00")
    found = last.between(datetime(2026, 1, 1, tzinfo=UTC), datetime(2029, 1, 1, tzinfo=UTC))
    assert [f"{day:%Y-%m-%d}" for day in found] == ["2027-01-03", "2028-01-02", "2028-12-31"]


def test_walks_forwards_and_backwards_alike() -> None:
    trigger = rule("FREQ=MONTHLY;BYDAY=2TU,-1FR")
    begin, end = datetime(2026, 2, 1, tzinfo=UTC), datetime(2028, 2, 1, tzinfo=UTC)
    listed = list(trigger.between(begin, end))
    back, at = [], trigger.previous_at_or_before(end)
    while at is not None and at >= begin:
        back.append(at)
        at = trigger.previous_at_or_before(at - timedelta(microseconds=1))
    assert back[::-1] == listed
    assert trigger.count_between(begin, end) == len(listed) == 48


def test_the_rules_of_cron_hold_for_local_time() -> None:
    daily = rule("FREQ=DAILY", "2026-03-01T02:30:00", "Europe/Berlin")
    assert daily.next_after(datetime(2026, 3, 28, 12, tzinfo=UTC)) == datetime(2026, 3, 29, 1, tzinfo=UTC)
    hourly = rule("FREQ=HOURLY", "2026-03-01T00:30:00", "Europe/Berlin")
    fold = hourly.between(datetime(2026, 10, 25, 0, tzinfo=UTC), datetime(2026, 10, 25, 2, tzinfo=UTC))
    assert [found.hour for found in fold] == [0, 1]
    skipping = rule("FREQ=DAILY", "2026-03-01T02:30:00", "Europe/Berlin", dst={"nonexistent": "skip"})
    assert skipping.next_after(datetime(2026, 3, 28, 12, tzinfo=UTC)) == datetime(
        2026, 3, 30, 0, 30, tzinfo=UTC
    )


def test_until_in_utc_and_count_end_a_rule() -> None:
    ended = rule("FREQ=DAILY;UNTIL=20260105T080000Z", "2026-01-01T09:00:00", "Europe/Berlin")
    assert ended.previous_at_or_before(datetime(2030, 1, 1, tzinfo=UTC)) == datetime(
        2026, 1, 5, 8, tzinfo=UTC
    )
    assert ended.next_after(datetime(2026, 1, 5, 8, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("fields", "field", "code"),
    [
        ({"rule": "BYDAY=MO"}, "trigger.rrule.rule", "required"),
        ({"rule": "FREQ=OFTEN"}, "trigger.rrule.rule", "invalid_choice"),
        ({"rule": "FREQ=DAILY;FREQ=DAILY"}, "trigger.rrule.rule", "invalid_syntax"),
        ({"rule": "FREQ=DAILY;BYNOON=1"}, "trigger.rrule.rule", "unknown_part"),
        ({"rule": "FREQ=DAILY;INTERVAL=0"}, "trigger.rrule.rule", "out_of_range"),
        ({"rule": "FREQ=DAILY;INTERVAL=\u0663"}, "trigger.rrule.rule", "out_of_range"),
        ({"rule": "FREQ=DAILY;COUNT=1000000"}, "trigger.rrule.rule", "out_of_range"),
        ({"rule": "FREQ=DAILY;BYMONTHDAY=0"}, "trigger.rrule.rule", "out_of_range"),
        ({"rule": "FREQ=DAILY;BYDAY=2MO"}, "trigger.rrule.rule", "invalid_syntax"),
        ({"rule": "FREQ=MONTHLY;BYDAY=XX"}, "trigger.rrule.rule", "invalid_syntax"),
        ({"rule": "FREQ=DAILY;UNTIL=20261332"}, "trigger.rrule.rule", "invalid_timestamp"),
        ({"rule": "FREQ=DAILY;COUNT=1;UNTIL=20270101"}, "trigger.rrule.rule", "invalid_syntax"),
        ({"rule": "FREQ=YEARLY;BYWEEKNO=1"}, "trigger.rrule.rule", "required"),
        ({"rule": "FREQ=YEARLY;BYWEEKNO=1;BYDAY=1MO"}, "trigger.rrule.rule", "invalid_syntax"),
        ({"rule": "FREQ=MONTHLY;BYWEEKNO=1;BYDAY=MO"}, "trigger.rrule.rule", "invalid_syntax"),
        ({"rule": "FREQ=YEARLY;BYWEEKNO=54;BYDAY=MO"}, "trigger.rrule.rule", "out_of_range"),
        ({"rule": "FREQ=YEARLY;BYWEEKNO=10;BYMONTH=7;BYDAY=MO"}, "trigger.rrule.rule", "never_fires"),
        ({"rule": "FREQ=YEARLY;BYEASTER=0"}, "trigger.rrule.rule", "unknown_part"),
        ({"rule": "FREQ=SECONDLY;BYHOUR=1"}, "trigger.rrule.rule", "not_supported_yet"),
        ({"rule": "FREQ=SECONDLY;BYSETPOS=1"}, "trigger.rrule.rule", "invalid_syntax"),
        ({"rule": "FREQ=HOURLY;BYMINUTE=1;BYSETPOS=2"}, "trigger.rrule.rule", "never_fires"),
        ({"rule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"}, "trigger.rrule.rule", "never_fires"),
        ({"rule": "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30"}, "trigger.rrule.rule", "never_fires"),
        ({"rule": "FREQ=MONTHLY;BYDAY=5MO;BYMONTHDAY=1"}, "trigger.rrule.rule", "never_fires"),
        ({"rule": "FREQ=DAILY;UNTIL=20200101T000000Z"}, "trigger.rrule.rule", "never_fires"),
        ({"rule": "FREQ=DAILY;" + "X" * 40_000}, "trigger.rrule.rule", "too_long"),
        ({"rule": "FREQ=DAILY;\ud800=1"}, "trigger.rrule.rule", "unknown_part"),
        ({"rule": ["FREQ=DAILY"]}, "trigger.rrule.rule", "invalid_type"),
        ({"dtstart": "2026-01-01T00:00:00Z"}, "trigger.rrule.dtstart", "local_time_required"),
        ({"dtstart": None}, "trigger.rrule.dtstart", "required"),
        ({"timezone": "Mars"}, "trigger.rrule.timezone", "unknown_timezone"),
    ],
)
def test_refused_quickly_by_field_and_code(fields: dict[str, Any], field: str, code: str) -> None:
    sound = {"rule": "FREQ=DAILY", "dtstart": "2026-01-01T00:00:00", "timezone": "UTC"}
    begin = time.thread_time()
    with pytest.raises(TriggerError) as refused:
        parse_trigger({"rrule": sound | fields})
    assert time.thread_time() - begin < 0.1
    assert (refused.value.field, refused.value.code) == (field, code)
    assert str(refused.value).encode()


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=SECONDLY",
        "FREQ=YEARLY;BYDAY=1MO;COUNT=1000",
        "FREQ=MINUTELY;BYSECOND=1,2",
        "FREQ=YEARLY;INTERVAL=50;BYMONTH=2;BYMONTHDAY=29",
        "FREQ=YEARLY;BYYEARDAY=366;BYDAY=MO",
        "FREQ=YEARLY;BYHOUR=0,6,12,18;BYDAY=MO,TU;BYSETPOS=100",
    ],
)
def test_a_far_start_and_a_sparse_rule_cost_no_walk_from_the_start(text: str) -> None:
    trigger = rule(text, "1950-02-01T00:00:00", "Europe/Berlin")
    begin = time.thread_time()
    found = trigger.next_after(datetime(2026, 6, 1, tzinfo=UTC))
    assert time.thread_time() - begin < 0.1
    assert found is None or found > datetime(2026, 6, 1, tzinfo=UTC)
