"""Properties of every cron trigger, tried on expressions and windows that nobody wrote by hand."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.core.triggers import Trigger, TriggerError, parse_trigger
from tests.support import oracle

MICROSECOND = timedelta(microseconds=1)
SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
QUICK = settings(max_examples=150, deadline=None)

# A zone, and a moment at which its clock does something (or, in the last, nothing).
NEAR_JUMPS = st.sampled_from(
    [
        ("Europe/Berlin", "2026-03-29T01:00Z"),
        ("Europe/Berlin", "2026-10-25T01:00Z"),
        ("America/New_York", "2026-11-01T06:00Z"),
        ("America/St_Johns", "2010-03-14T03:31Z"),
        ("America/St_Johns", "2010-11-07T02:31Z"),
        ("America/Sao_Paulo", "2018-02-18T02:00Z"),
        ("America/Sao_Paulo", "2018-11-04T03:00Z"),
        ("Africa/Casablanca", "2024-03-10T02:00Z"),
        ("Africa/Casablanca", "2024-04-14T02:00Z"),
        ("Asia/Beirut", "2022-03-26T22:00Z"),
        ("Asia/Pyongyang", "2015-08-14T15:00Z"),
        ("Antarctica/Troll", "2025-03-30T01:00Z"),
        ("Antarctica/Casey", "2020-10-03T16:01Z"),
        ("Australia/Lord_Howe", "2026-04-04T15:00Z"),
        ("Australia/Lord_Howe", "2026-10-03T15:30Z"),
        ("Pacific/Apia", "2011-12-30T10:00Z"),
        ("Pacific/Kwajalein", "1993-08-21T12:00Z"),
        ("Pacific/Chatham", "2026-04-04T14:00Z"),
        ("America/Nuuk", "2024-10-27T01:00Z"),
        ("Asia/Kathmandu", "2026-06-01T00:00Z"),
    ]
)


def _items(first: int, last: int, *extra: str) -> st.SearchStrategy[str]:
    numbers = st.integers(first, last)
    pairs = st.tuples(numbers, numbers).map(sorted)
    return st.one_of(
        numbers.map(str),
        pairs.map(lambda pair: f"{pair[0]}-{pair[1]}"),
        st.tuples(pairs, st.integers(1, 5)).map(lambda both: f"{both[0][0]}-{both[0][1]}/{both[1]}"),
        st.tuples(numbers, st.integers(2, 9)).map(lambda both: f"{both[0]}/{min(both[1], last)}"),
        *([st.sampled_from(extra)] if extra else []),
    )


def _field(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    stars = st.sampled_from(["*", "*", "?", "*/2", "*/3"])
    return st.one_of(stars, st.lists(items, min_size=1, max_size=3).map(",".join))


MINUTES = _field(_items(0, 59))
HOURS = st.one_of(_field(_items(0, 23, "22-2", "23-1/2")), st.integers(0, 4).map(str), st.just("0-23"))
DAYS = st.one_of(st.just("*"), _field(_items(1, 31, "L", "L-1", "LW", "1W", "15W", "30W")))
MONTHS = st.one_of(st.just("*"), st.just("*"), _field(_items(1, 12, "nov-feb", "MAR", "10-4")))
WEEKDAYS = st.one_of(
    st.just("*"), _field(_items(0, 6, "FRI-MON", "sun", "7", "5-7", "6L", "SUN#1", "4#5", "7-2"))
)
EXPRESSIONS = st.tuples(MINUTES, HOURS, DAYS, MONTHS, WEEKDAYS).map(" ".join)


@st.composite
def situations(draw: st.DrawFn) -> tuple[dict[str, Any], datetime]:
    """A cron trigger's fields and a moment within two days of a clock jump in its zone."""
    zone, moment = draw(NEAR_JUMPS)
    fields = {
        "expressions": draw(st.lists(EXPRESSIONS, min_size=1, max_size=2)),
        "timezone": zone,
        "day_match": draw(st.sampled_from(["classic", "either", "both"])),
        "dst": {
            "nonexistent": draw(st.sampled_from(["auto", "skip", "shift_forward"])),
            "repeated": draw(st.sampled_from(["auto", "first", "second", "both"])),
        },
    }
    offset = timedelta(seconds=draw(st.integers(-48 * 3600, 48 * 3600)))
    return fields, datetime.fromisoformat(moment) + offset


def _parsed(fields: dict[str, Any]) -> Trigger | None:
    """The trigger; None for what is rightly refused as never firing."""
    try:
        return parse_trigger({"cron": fields})
    except TriggerError as error:
        if error.code != "never_fires":
            raise
        return None


@SLOW
@given(situations(), st.integers(1, 72))
def test_between_equals_asking_every_minute(situation: tuple[dict[str, Any], datetime], hours: int) -> None:
    fields, start = situation
    end = start + timedelta(hours=hours)
    trigger = _parsed(fields)
    expected = oracle.instants(
        fields["expressions"],
        fields["timezone"],
        start,
        end,
        day_match=fields["day_match"],
        **fields["dst"],
    )
    found = list(trigger.between(start, end)) if trigger else []
    assert found == expected
    assert trigger is None or trigger.count_between(start, end) == len(expected)


@QUICK
@given(situations())
def test_next_after_is_strictly_later_and_the_first_of_between(
    situation: tuple[dict[str, Any], datetime],
) -> None:
    fields, start = situation
    if (trigger := _parsed(fields)) is None:
        return
    at: datetime | None = start
    for _ in range(12):
        assert at is not None
        following = trigger.next_after(at)
        assert following is None or following > at
        if following is None or following > start + timedelta(days=400):
            return
        assert next(trigger.between(at + MICROSECOND, following + MICROSECOND)) == following
        assert trigger.count_between(at + MICROSECOND, following) == 0
        at = following


@QUICK
@given(situations(), st.integers(0, 4 * 86400))
def test_next_after_is_monotone(situation: tuple[dict[str, Any], datetime], later_s: int) -> None:
    fields, start = situation
    if (trigger := _parsed(fields)) is None:
        return
    sooner, later = trigger.next_after(start), trigger.next_after(start + timedelta(seconds=later_s))
    assert sooner is not None
    assert later is not None
    assert sooner <= later


@QUICK
@given(situations())
def test_previous_at_or_before_is_the_inverse_of_next_after(
    situation: tuple[dict[str, Any], datetime],
) -> None:
    fields, start = situation
    trigger = _parsed(fields)
    following = trigger.next_after(start) if trigger else None
    if trigger is None or following is None:
        return
    assert trigger.previous_at_or_before(following) == following
    preceding = trigger.previous_at_or_before(following - MICROSECOND)
    assert preceding is None or preceding <= start
    if preceding is not None:
        assert trigger.next_after(preceding) == following


@QUICK
@given(situations())
def test_a_preview_is_what_will_happen(situation: tuple[dict[str, Any], datetime]) -> None:
    fields, start = situation
    if (trigger := _parsed(fields)) is None:
        return
    shown = trigger.preview(start, 5)
    at: datetime | None = start - MICROSECOND
    for instant in shown:
        assert at is not None
        at = trigger.next_after(at)
        assert instant.utc == at
        assert instant.local == at
        assert instant.utc.tzinfo is UTC


JULY = datetime(2026, 7, 1, tzinfo=UTC)
DAYS_OF_JULY = st.integers(0, 30)


@QUICK
@given(
    st.sampled_from(
        ["0 9 * * *", "0 9 * * MON-FRI", "0 9 * * SAT", "0 9 */3 * *", "0 9 L * *", "0 9 13 * FRI"]
    ),
    st.lists(st.tuples(DAYS_OF_JULY, st.integers(0, 6)), max_size=5),
    st.sampled_from(["skip", "next_business_day"]),
)
def test_exclusions_equal_moving_date_by_date(
    expression: str, rests: list[tuple[int, int]], on_excluded: str
) -> None:
    excluded = {
        JULY.date() + timedelta(days=first + more) for first, length in rests for more in range(length + 1)
    }
    exclusions = [{"date": day.isoformat()} for day in sorted(excluded)]
    trigger = {"cron": {"expressions": [expression], "timezone": "UTC"}}
    begin, end = JULY - timedelta(days=10), JULY + timedelta(days=60)
    expected = set()
    for instant in parse_trigger(trigger).between(begin, end):
        moved = instant
        if on_excluded == "next_business_day" and instant.date() in excluded:
            while moved.date() in excluded or moved.weekday() >= 5:
                moved += timedelta(days=1)
        if moved.date() not in excluded:
            expected.add(moved)
    found = parse_trigger(trigger, exclusions=exclusions, on_excluded=on_excluded)
    assert list(found.between(begin, end)) == sorted(expected)
    assert _walked_back(found, begin, end) == sorted(expected, reverse=True)
    assert found.count_between(begin, end) == len(expected)


def _walked_back(trigger: Trigger, begin: datetime, end: datetime) -> list[datetime]:
    walked = []
    at = trigger.previous_at_or_before(end - MICROSECOND)
    while at is not None and at >= begin:
        walked.append(at)
        at = trigger.previous_at_or_before(at - MICROSECOND)
    return walked


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60), st.sampled_from(["expressions", "timezone", "every_s", "at"]))
def test_any_text_is_read_or_refused(text: str, place: str) -> None:
    documents: dict[str, Any] = {
        "expressions": {"cron": {"expressions": [text], "timezone": "UTC"}},
        "timezone": {"cron": {"expressions": ["* * * * *"], "timezone": text}},
        "every_s": {"interval": {"every_s": text, "anchor": "2026-01-01T00:00:00Z"}},
        "at": {"once": {"at": text}},
    }
    message = ""
    try:
        parse_trigger(documents[place])
    except TriggerError as refused:
        message = str(refused)
    message.encode()  # must not hold what no answer could carry
