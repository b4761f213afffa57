"""iCalendar files as people and offices publish them, and as somebody writes them who means harm."""

from datetime import date

import pytest

from scheduler.core.ics import MOST_YEARS, days_of
from scheduler.core.reading import Refusal

UNTIL = date(2036, 12, 31)


def file(*events: str) -> str:
    return "\n".join(
        ["BEGIN:VCALENDAR", *(f"BEGIN:VEVENT\n{event}\nEND:VEVENT" for event in events), "END:VCALENDAR"]
    )


def days(*events: str) -> list[str | dict[str, str]]:
    return days_of(file(*events), until=UNTIL)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("DTSTART;VALUE=DATE:20261225", ["2026-12-25"]),
        ("DTSTART;TZID=Europe/Berlin:20261225T090000\nDTEND:20261226T100000", [("2026-12-25", "2026-12-26")]),
        (
            "DTSTART:20350501\nDTEND:20350503\nRRULE:FREQ=YEARLY",
            [("2035-05-01", "2035-05-02"), ("2036-05-01", "2036-05-02")],
        ),
        ("DTSTART:20350101\nRRULE:FREQ=YEARLY;UNTIL=20360101T120000Z", ["2035-01-01", "2036-01-01"]),
        ("DTSTART:20260101\nRRULE:COUNT=2;FREQ=YEARLY", ["2026-01-01", "2027-01-01"]),
        ("DTSTART:20260101\nRRULE:freq=yearly;count=2\nEXDATE:20260101", ["2027-01-01"]),
        ("DTSTART:20260901\nRRULE:FREQ=MONTHLY;BYDAY=1MO;UNTIL=20261031", ["2026-09-07", "2026-10-05"]),
        ("DTSTART:19000101\nRRULE:FREQ=YEARLY;COUNT=2", ["1900-01-01", "1901-01-01"]),
        ("DTSTART:20260230\nSTATUS:CANCELLED", []),
        ("DTSTART;VALUE=DATE:20261224\nDURATION:P3D", [("2026-12-24", "2026-12-26")]),
        ("DTSTART:20261224\nDURATION:P1W", [("2026-12-24", "2026-12-30")]),
        ("DTSTART:20261224T220000\nDURATION:PT3H", [("2026-12-24", "2026-12-25")]),
        ("DTSTART:20261224T220000\nDURATION:PT2H", ["2026-12-24"]),
        ("DTSTART:20261225T000000\nDTEND:20261226T000000", ["2026-12-25"]),
        ("DTSTART:20261225\nBEGIN:VALARM\nTRIGGER:-PT15M\nDURATION:P3D\nEND:VALARM", ["2026-12-25"]),
        ("DTSTART:20261225\nRDATE;VALUE=DATE:20261231,20270106", ["2026-12-25", "2026-12-31", "2027-01-06"]),
    ],
)
def test_events_become_days(event: str, expected: list[str | tuple[str, str]]) -> None:
    spans = [one if isinstance(one, str) else {"from": one[0], "to": one[1]} for one in expected]
    assert days(event) == spans


@pytest.mark.parametrize(
    ("instance", "second"),
    [
        ("RECURRENCE-ID;VALUE=DATE:20270101\nDTSTART:20270104", ["2027-01-04"]),
        ("RECURRENCE-ID;VALUE=DATE:20270101\nDTSTART:20270101\nSTATUS:CANCELLED", []),
        ("RECURRENCE-ID:20270101\nDTSTART:20270101", ["2027-01-01"]),
    ],
)
def test_one_time_of_a_recurring_event_is_moved_or_called_off(instance: str, second: list[str]) -> None:
    recurring = "UID:1\nDTSTART:20260101\nRRULE:FREQ=YEARLY;COUNT=2"
    assert days(recurring, f"UID:1\n{instance}") == ["2026-01-01", *second]
    assert {"2026-01-01", "2027-01-01"} <= set(days(recurring, f"UID:2\n{instance}"))


@pytest.mark.parametrize("length", range(20, len(file("DTSTART:20261225"))))
def test_a_file_that_is_cut_off_is_refused(length: int) -> None:
    """Taken for whole, it would empty the calendar that it replaces."""
    with pytest.raises(Refusal, match=r"cut off"):
        days_of(file("DTSTART:20261225")[:length], until=UNTIL)


def test_what_follows_the_end_but_is_empty_is_no_matter() -> None:
    assert days_of(file("DTSTART:20261225") + "\r\n\r\n \n", until=UNTIL) == ["2026-12-25"]


def test_an_old_event_that_recurs_is_followed_from_eleven_years_back() -> None:
    found = days("DTSTART:19700101\nRRULE:FREQ=YEARLY")
    assert (found[0], found[-1], len(found)) == ("2025-01-01", "2036-01-01", 12)


def test_the_same_day_twice_is_one() -> None:
    assert days("DTSTART:20261225", "DTSTART:20261225") == ["2026-12-25"]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ("SUMMARY:no start", "no DTSTART"),
        ("DTSTART:20260230", "is no date"),
        ("DTSTART:00010101\nRRULE:FREQ=DAILY", "is no date"),
        ("DTSTART:99991231", "is no date"),
        ("DTSTART:20260101\nRRULE:FREQ=HOURLY", "within the day"),
        ("DTSTART:20260101\nRRULE:FREQ=OFTEN", "RRULE"),
        ("DTSTART:20260101\nRRULE:FREQ=DAILY;COUNT=x", "COUNT"),
        ("DTSTART:20260101\nRRULE:FREQ=DAILY;COUNT=0", "COUNT"),
        ("DTSTART:20260101\nDURATION:P999999999D", "no duration"),
        ("DTSTART:20260101\nDURATION:PT", "no duration"),
        ("DTSTART:20260101\nDURATION:-P1D", "no duration"),
        ("DTSTART:20260101T250000", "is no date"),
        ("DTSTART:20260101\nRDATE;VALUE=PERIOD:20260105T000000Z/P1D", "is no date"),
    ],
)
def test_what_cannot_be_read_is_refused(event: str, reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        days(event)


@pytest.mark.parametrize(
    "rule", ["FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30", "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30;COUNT=999999999"]
)
def test_rules_that_never_match_end(rule: str) -> None:
    assert days(f"DTSTART:20200101\nRRULE:{rule}") == []


def test_a_file_that_would_take_long_is_refused_before_it_is_followed() -> None:
    """Each event spans 12 years, by rules that match no day: no count of days would stop them."""
    event = "DTSTART:20200101\nRRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30"
    with pytest.raises(Refusal) as refused:
        days(*[event] * (MOST_YEARS // 12 + 1))
    assert refused.value.code == "too_many"
