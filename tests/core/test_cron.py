"""The dialect: what is read, and what is refused with which reason."""

from datetime import UTC, datetime, timedelta

import pytest
from croniter import croniter

from scheduler.core.cron import DayMatch, MonthShape, parse_expression
from scheduler.core.reading import Refusal
from scheduler.core.triggers import TriggerError, parse_trigger

FEBRUARY_2026 = MonthShape(month=2, first_weekday=0, length=28)  # begins on a Sunday
MARCH_2026 = MonthShape(month=3, first_weekday=0, length=31)
AUGUST_2026 = MonthShape(month=8, first_weekday=6, length=31)  # begins on a Saturday


def _field(text: str, name: str) -> set[int]:
    return set(getattr(parse_expression(text, DayMatch.CLASSIC), name).values)


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("*/20 * * * *", "minute", {0, 20, 40}),
        ("50/4 * * * *", "minute", {50, 54, 58}),
        ("10-20/5,7 * * * *", "minute", {7, 10, 15, 20}),
        ("? ? * * *", "hour", set(range(24))),
        ("0 22-2 * * *", "hour", {22, 23, 0, 1, 2}),
        ("0 22-2/2 * * *", "hour", {22, 0, 2}),
        ("0 0 1 nov-Feb *", "month", {11, 12, 1, 2}),
        ("0 0 * * fri-MON", "day_of_week", {5, 6, 0, 1}),
        ("0 0 * * 5-7", "day_of_week", {5, 6, 0}),
        ("0 0 * * 0-7", "day_of_week", set(range(7))),
        ("0 0 * * 7-2", "day_of_week", {0, 1, 2}),
        ("0 0 * * sat-sun", "day_of_week", {6, 0}),
        ("0 0 * * 7", "day_of_week", {0}),
        ("0 0 * * 2/2", "day_of_week", {2, 4, 6}),
        ("0 0 * * */2", "day_of_week", {0, 2, 4, 6}),
        ("00 08 * * *", "hour", {8}),
        ("\t0  8 * * * ", "hour", {8}),
        ("@Weekly", "day_of_week", {0}),
        ("@hourly", "minute", {0}),
    ],
)
def test_fields_name_these_values(text: str, name: str, values: set[int]) -> None:
    assert _field(text, name) == values


@pytest.mark.parametrize(
    ("day", "weekday", "shape", "days"),
    [
        ("L", "*", FEBRUARY_2026, {28}),
        ("L-2", "*", FEBRUARY_2026, {26}),
        ("L-30", "*", FEBRUARY_2026, set()),
        ("LW", "*", FEBRUARY_2026, {27}),
        ("1W", "*", FEBRUARY_2026, {2}),
        ("28W", "*", FEBRUARY_2026, {27}),
        ("31W", "*", FEBRUARY_2026, set()),
        ("1W", "*", AUGUST_2026, {3}),
        ("15W", "*", AUGUST_2026, {14}),
        ("7,14,L", "*", MARCH_2026, {7, 14, 31}),
        ("*", "5L", MARCH_2026, {27}),
        ("*", "FRI#2", MARCH_2026, {13}),
        ("*", "0#5", MARCH_2026, {29}),
        ("*", "0#5", FEBRUARY_2026, set()),
        ("*", "SUN#1,3L", MARCH_2026, {1, 25}),
    ],
)
def test_calendar_forms_name_these_days(day: str, weekday: str, shape: MonthShape, days: set[int]) -> None:
    expression = parse_expression(f"0 0 {day} * {weekday}", DayMatch.CLASSIC)
    assert expression.days_in(shape) == days


@pytest.mark.parametrize(
    ("day", "weekday", "day_match", "days"),
    [
        ("1,2", "MON", DayMatch.CLASSIC, {1, 2, 9, 16, 23, 30}),
        ("1,2", "MON", DayMatch.EITHER, {1, 2, 9, 16, 23, 30}),
        ("1,2", "MON", DayMatch.BOTH, {2}),
        ("*/15", "MON", DayMatch.CLASSIC, {16}),
        ("*/15", "MON", DayMatch.EITHER, {1, 2, 9, 16, 23, 30, 31}),
        ("1-31", "MON", DayMatch.CLASSIC, set(range(1, 32))),
        ("?", "MON", DayMatch.EITHER, {2, 9, 16, 23, 30}),
        ("15", "FRI#2", DayMatch.CLASSIC, {13, 15}),
    ],
)
def test_the_two_day_fields_combine(day: str, weekday: str, day_match: DayMatch, days: set[int]) -> None:
    assert parse_expression(f"0 0 {day} * {weekday}", day_match).days_in(MARCH_2026) == days


@pytest.mark.parametrize(
    ("text", "rolling"),
    [
        ("*/15 3 * * *", True),
        ("30 */2 * * *", True),
        ("0 0-23 * * *", True),
        ("0 ? * * *", True),
        ("@hourly", True),
        ("0 22-21 * * *", True),
        ("0 2 * * *", False),
        ("0-59 2 * * *", False),
        ("0 1-23 * * *", False),
    ],
)
def test_rolling_expressions_are_told_from_times_of_day(text: str, rolling: bool) -> None:
    assert parse_expression(text, DayMatch.CLASSIC).is_rolling is rolling


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "field_count"),
        ("* * * *", "field_count"),
        ("0 0 9 * * *", "field_count"),
        ("0 0 9 * * ? 2027", "field_count"),
        ("@reboot", "not_a_time"),
        ("@often", "unknown_macro"),
        ("*/0 * * * *", "invalid_step"),
        ("*/90 * * * *", "invalid_step"),
        ("5-1 * * * *", "empty_range"),
        ("0 0 28-3 * *", "empty_range"),
        ("60 * * * *", "out_of_range"),
        ("0 24 * * *", "out_of_range"),
        ("0 0 0 * *", "out_of_range"),
        ("0 0 * 13 *", "out_of_range"),
        ("0 0 * * 8", "out_of_range"),
        ("0 0 32W * *", "out_of_range"),
        ("0 0 L-31 * *", "out_of_range"),
        ("0 0 * * MON#6", "out_of_range"),
        ("0 0 * * MON#0", "out_of_range"),
        ("999999999999999999 * * * *", "out_of_range"),
        ("0 0 * FOO *", "unknown_name"),
        ("0 MON * * *", "unknown_name"),
        ("0 0 * JANUARY *", "invalid_syntax"),
        ("R * * * *", "invalid_syntax"),
        ("0 0 * * L", "invalid_syntax"),
        ("0 0 FRI#2 * *", "invalid_syntax"),
        ("0 0 L-3W * *", "invalid_syntax"),
        ("1,,2 * * * *", "invalid_syntax"),
        ("1/ * * * *", "invalid_syntax"),
        ("1-5-7 * * * *", "invalid_syntax"),
        ("+5 * * * *", "invalid_character"),
        ("\u0663 * * * *", "invalid_character"),
        ("0\u00a09 * * *", "invalid_character"),
        ("0 9 * * *\n", "invalid_character"),
        ("\ud800 * * * *", "invalid_character"),
        ("0," * 20000 + "1 * * * *", "too_long"),
    ],
)
def test_refused_with_a_code(text: str, code: str) -> None:
    with pytest.raises(Refusal) as refused:
        parse_expression(text, DayMatch.CLASSIC)
    assert refused.value.code == code


def test_errors_name_the_field_and_the_entry() -> None:
    with pytest.raises(Refusal, match=r"hour field, position 4, '25': values lie between 0 and 23"):
        parse_expression("0 12,25 * * *", DayMatch.CLASSIC)


# -- croniter as a cross-check, and where this page wins over it

COMMON_GROUND = [
    "*/5 * * * *",
    "7,37 */3 * * *",
    "0 22-2 * * *",
    "30 9 * * MON-FRI",
    "15 10 L * *",
    "0 0 15W * *",
    "0 0 1 */3 *",
    "0 12 1,15 * WED",
    "0 0 * * SUN#2",
    "0 6 * * 5-7",
]


@pytest.mark.parametrize("text", COMMON_GROUND)
def test_croniter_agrees_where_both_read_alike(text: str) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    trigger = parse_trigger({"cron": {"expressions": [text], "timezone": "UTC"}})
    theirs = croniter(text, start)
    at = start
    for _ in range(50):
        following = trigger.next_after(at)
        assert following == theirs.get_next(datetime)
        assert following is not None
        at = following


@pytest.mark.parametrize("text", ["*/90 * * * *", "5-1 * * * *", "R * * * *", "0 0 31 2 *"])
def test_croniter_accepts_what_is_refused_here(text: str) -> None:
    assert croniter.is_valid(text)
    with pytest.raises(TriggerError):
        parse_trigger({"cron": {"expressions": [text], "timezone": "UTC"}})


@pytest.mark.parametrize("text", ["0 0 * * 5L", "0 0 LW * *", "0 0 L-2 * *"])
def test_croniter_refuses_what_is_read_here(text: str) -> None:
    assert not croniter.is_valid(text)
    assert parse_trigger({"cron": {"expressions": [text], "timezone": "UTC"}})


def test_croniter_combines_a_day_and_a_numbered_weekday_otherwise() -> None:
    start = datetime(2026, 3, 1, tzinfo=UTC)
    trigger = parse_trigger({"cron": {"expressions": ["0 0 14 * FRI#2"], "timezone": "UTC"}})
    march = trigger.between(start, start + timedelta(days=31))
    assert [found.day for found in march] == [13, 14]
    theirs = croniter("0 0 14 * FRI#2", start)
    found_by_croniter = [theirs.get_next(datetime) for _ in range(3)]
    assert [f"{found:%m-%d}" for found in found_by_croniter] == [
        "03-13",
        "04-10",
        "05-08",
    ]  # the 14th is lost
