"""Triggers as values: kinds, bounds, exclusions, previews, and hostile input."""

import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.triggers import Trigger, TriggerError, parse_trigger

BERLIN_AT_HALF_PAST_TWO = {"cron": {"expressions": ["30 2 * * *"], "timezone": "Europe/Berlin"}}


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def daily(**bounds: Any) -> Trigger:
    return parse_trigger({"cron": {"expressions": ["0 9 * * *"], "timezone": "UTC"}}, **bounds)


def days(trigger: Trigger, start: str, end: str) -> list[str]:
    return [f"{found:%m-%d}" for found in trigger.between(at(f"{start}T00:00Z"), at(f"{end}T00:00Z"))]


def test_the_core_loads_no_framework() -> None:
    script = "import sys, scheduler.core.triggers, scheduler.core.catchup; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert not {"django", "celery", "kombu", "psycopg"} & set(loaded.split())


# -- kinds


def test_once_is_due_once() -> None:
    trigger = parse_trigger({"once": {"at": "2026-12-01T09:00:00+01:00"}})
    due = at("2026-12-01T08:00:00Z")
    assert trigger.next_after(due - timedelta(microseconds=1)) == due
    assert trigger.next_after(due) is None
    assert trigger.previous_at_or_before(due) == due
    assert list(trigger.between(due, due + timedelta(seconds=1))) == [due]
    assert trigger.count_between(due, due) == 0


def test_once_takes_a_local_time_with_a_zone() -> None:
    trigger = parse_trigger({"once": {"at": "2026-03-29T02:30:00", "timezone": "Europe/Berlin"}})
    assert trigger.next_after(at("2026-01-01T00:00Z")) == at("2026-03-29T01:00Z")


def test_an_interval_is_counted_from_its_anchor() -> None:
    trigger = parse_trigger({"interval": {"every_s": 7, "anchor": "2026-01-01T00:00:00Z"}})
    assert trigger.next_after(at("2025-06-01T00:00Z")) == at("2026-01-01T00:00Z")
    assert trigger.previous_at_or_before(at("2025-06-01T00:00Z")) is None
    assert trigger.next_after(at("2026-01-01T00:00:07Z")) == at("2026-01-01T00:00:14Z")
    assert trigger.previous_at_or_before(at("2026-01-01T00:00:13Z")) == at("2026-01-01T00:00:07Z")
    assert trigger.count_between(at("2025-01-01T00:00Z"), at("2026-01-01T00:00:14Z")) == 2


def test_the_default_anchor_is_the_second_of_creation_and_not_due() -> None:
    created = at("2026-01-01T12:00:00.700Z")
    trigger = parse_trigger({"interval": {"every_s": 60}}, default_anchor=created)
    assert trigger.next_after(at("2026-01-01T11:00Z")) == at("2026-01-01T12:01Z")
    with pytest.raises(TriggerError) as refused:
        parse_trigger({"interval": {"every_s": 60}})
    assert (refused.value.field, refused.value.code) == ("trigger.interval.anchor", "required")


def test_several_expressions_are_one_union() -> None:
    trigger = parse_trigger({"cron": {"expressions": ["0 9 * * *", "0 9,10 1 * *"], "timezone": "UTC"}})
    found = list(trigger.between(at("2026-01-01T00:00Z"), at("2026-01-03T00:00Z")))
    assert found == [at("2026-01-01T09:00Z"), at("2026-01-01T10:00Z"), at("2026-01-02T09:00Z")]
    assert trigger.count_between(at("2026-01-01T00:00Z"), at("2026-01-03T00:00Z")) == 3


def test_auto_is_judged_for_each_expression_alone() -> None:
    both = {"cron": {"expressions": ["*/30 2 * * *", "15 2 * * *"], "timezone": "Europe/Berlin"}}
    gap_day = parse_trigger(both).between(at("2026-03-28T23:00Z"), at("2026-03-29T22:00Z"))
    assert list(gap_day) == [at("2026-03-29T01:00Z")]  # the rolling one makes nothing up
    fold_day = parse_trigger(both).between(at("2026-10-24T22:00Z"), at("2026-10-25T23:00Z"))
    assert [f"{found:%H:%M}" for found in fold_day] == ["00:00", "00:15", "00:30", "01:00", "01:30"]


# -- values


def test_equal_input_is_parsed_once_and_triggers_are_hashable() -> None:
    first, second = parse_trigger(BERLIN_AT_HALF_PAST_TWO), parse_trigger(dict(BERLIN_AT_HALF_PAST_TWO))
    assert first is second
    assert len({first, parse_trigger(BERLIN_AT_HALF_PAST_TWO, end_at=at("2027-01-01T00:00Z"))}) == 2


@pytest.mark.parametrize("method", ["next_after", "previous_at_or_before"])
def test_naive_datetimes_raise(method: str) -> None:
    with pytest.raises(ValueError, match="aware"):
        getattr(daily(), method)(datetime(2026, 1, 1))  # noqa: DTZ001


def test_between_refuses_naive_bounds_before_the_first_item() -> None:
    with pytest.raises(ValueError, match="aware"):
        daily().between(datetime(2026, 1, 1), datetime(2026, 1, 2, tzinfo=UTC))  # noqa: DTZ001


def test_other_zones_go_in_and_utc_comes_out() -> None:
    found = daily().next_after(at("2026-01-01T09:30:00+01:00"))
    assert found == at("2026-01-01T09:00Z")
    assert found is not None
    assert found.tzinfo is UTC


# -- bounds and the end of the calendar


def test_bounds_are_inclusive() -> None:
    trigger = daily(start_at=at("2026-01-02T09:00Z"), end_at=at("2026-01-04T09:00Z"))
    assert days(trigger, "2026-01-01", "2026-02-01") == ["01-02", "01-03", "01-04"]
    assert trigger.next_after(at("2025-01-01T00:00Z")) == at("2026-01-02T09:00Z")
    assert trigger.next_after(at("2026-01-04T09:00Z")) is None
    assert trigger.previous_at_or_before(at("2030-01-01T00:00Z")) == at("2026-01-04T09:00Z")
    assert trigger.previous_at_or_before(at("2026-01-02T08:00Z")) is None


def test_bounds_that_cross_are_refused() -> None:
    with pytest.raises(TriggerError) as refused:
        daily(start_at=at("2026-01-02T00:00Z"), end_at=at("2026-01-01T00:00Z"))
    assert refused.value.field == "end_at"


def test_the_calendar_ends_with_2199() -> None:
    assert daily().next_after(at("2199-12-31T08:00Z")) == at("2199-12-31T09:00Z")
    assert daily().next_after(at("2199-12-31T09:00Z")) is None
    assert daily().next_after(datetime.max.replace(tzinfo=UTC)) is None
    assert daily().previous_at_or_before(datetime.max.replace(tzinfo=UTC)) == at("2199-12-31T09:00Z")
    assert daily().previous_at_or_before(datetime.min.replace(tzinfo=UTC)) is None
    assert daily().next_after(datetime.min.replace(tzinfo=UTC)) == at("1900-01-01T09:00Z")


def test_a_rare_date_is_found_across_a_century_without_a_leap_day() -> None:
    leap_day = parse_trigger({"cron": {"expressions": ["0 0 29 2 *"], "timezone": "UTC"}})
    assert leap_day.next_after(at("2096-03-01T00:00Z")) == at("2104-02-29T00:00Z")
    assert leap_day.previous_at_or_before(at("2104-02-28T00:00Z")) == at("2096-02-29T00:00Z")


def test_a_time_that_always_falls_into_the_gap_never_fires() -> None:
    second_sunday_of_march = {
        "cron": {
            "expressions": ["30 2 * 3 SUN#2"],
            "timezone": "America/New_York",
            "dst": {"nonexistent": "skip"},
        }
    }
    with pytest.raises(TriggerError, match="never fires"):
        parse_trigger(second_sunday_of_march)


# -- exclusions


def test_excluded_dates_are_skipped() -> None:
    trigger = daily(exclusions=[{"date": "2026-01-02"}, {"from": "2026-01-04", "to": "2026-01-06"}])
    assert days(trigger, "2026-01-01", "2026-01-09") == ["01-01", "01-03", "01-07", "01-08"]
    assert trigger.previous_at_or_before(at("2026-01-06T12:00Z")) == at("2026-01-03T09:00Z")


def test_calendars_are_looked_up_by_name() -> None:
    calendars = {"holidays": ["2026-01-01", {"from": "2026-01-03", "to": "2026-01-04"}]}
    trigger = daily(exclusions=[{"calendar": "holidays"}], calendars=calendars)
    assert days(trigger, "2026-01-01", "2026-01-06") == ["01-02", "01-05"]
    with pytest.raises(TriggerError, match="Did you mean 'holidays'") as refused:
        daily(exclusions=[{"calendar": "holiday"}], calendars=calendars)
    assert refused.value.field == "exclusions.0.calendar"


def test_excluded_instants_move_to_the_next_business_day_and_coincide_there() -> None:
    friday_to_monday = [{"date": "2026-12-25"}, {"date": "2026-12-28"}]
    weekly = {"cron": {"expressions": ["0 9 * * FRI"], "timezone": "UTC"}}
    moved = parse_trigger(weekly, exclusions=friday_to_monday, on_excluded="next_business_day")
    assert days(moved, "2026-12-18", "2027-01-02") == ["12-18", "12-29", "01-01"]
    every_day = daily(exclusions=friday_to_monday, on_excluded="next_business_day")
    found = days(every_day, "2026-12-24", "2026-12-31")
    assert found == ["12-24", "12-26", "12-27", "12-29", "12-30"]
    assert moved.previous_at_or_before(at("2026-12-31T00:00Z")) == at("2026-12-29T09:00Z")


def test_a_rest_of_years_cannot_be_moved() -> None:
    years = [{"from": "2026-01-01", "to": "2029-01-01"}]
    with pytest.raises(TriggerError, match="business day"):
        daily(exclusions=years, on_excluded="next_business_day")
    assert daily(exclusions=years).next_after(at("2026-01-01T00:00Z")) == at("2029-01-02T09:00Z")


def test_exclusions_that_leave_nothing_never_fire() -> None:
    with pytest.raises(TriggerError, match="never fires") as refused:
        daily(exclusions=[{"from": "2000-01-01", "to": "2150-01-01"}])
    assert refused.value.field == "exclusions"


# -- preview


def test_a_preview_tells_what_the_clock_moves() -> None:
    moved = parse_trigger(BERLIN_AT_HALF_PAST_TWO).preview(at("2026-03-28T12:00Z"), 2)
    assert [shown.utc for shown in moved] == [at("2026-03-29T01:00Z"), at("2026-03-30T00:30Z")]
    assert moved[0].local.isoformat() == "2026-03-29T03:00:00+02:00"
    assert moved[0].notes == (
        "2026-03-29 02:30 does not exist in Europe/Berlin: moved to the end of the gap.",
    )
    assert moved[1].notes == ()


def test_a_preview_tells_what_the_clock_doubles() -> None:
    rolling = {"cron": {"expressions": ["30 * * * *"], "timezone": "Europe/Berlin"}}
    doubled = parse_trigger(rolling).preview(at("2026-10-25T00:00Z"), 3)
    assert ["twice" in " ".join(shown.notes) for shown in doubled] == [True, True, False]
    assert "first pass" in doubled[0].notes[0]
    assert "second pass" in doubled[1].notes[0]


def test_a_preview_tells_what_the_clock_skips() -> None:
    skipping = {"cron": BERLIN_AT_HALF_PAST_TWO["cron"] | {"dst": {"nonexistent": "skip"}}}
    first, second = parse_trigger(skipping).preview(at("2026-03-28T00:00Z"), 2)
    assert first.notes == ()
    assert second.utc == at("2026-03-30T00:30Z")
    assert second.notes == ("2026-03-29 02:30 does not exist in Europe/Berlin: skipped.",)


def test_a_preview_tells_which_dates_are_excluded() -> None:
    trigger = daily(exclusions=[{"date": "2026-01-02"}])
    _, second = trigger.preview(at("2026-01-01T00:00Z"), 2)
    assert second.notes == ("2026-01-02 is excluded: skipped.",)


@pytest.mark.parametrize(("day_match", "words"), [("classic", "either matches"), ("both", "both match")])
def test_a_preview_says_how_two_day_fields_combine(day_match: str, words: str) -> None:
    cron = {"expressions": ["0 9 1-7 * MON"], "timezone": "UTC", "day_match": day_match}
    (first,) = parse_trigger({"cron": cron}).preview(at("2026-01-01T00:00Z"), 1)
    assert words in first.notes[0]


def test_a_preview_of_a_finished_schedule_is_short() -> None:
    assert parse_trigger({"once": {"at": "2026-01-01T00:00:00Z"}}).preview(at("2026-01-02T00:00Z"), 5) == []


# -- refusals


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _cron(**fields: Any) -> Any:
    return {"cron": {"expressions": ["* * * * *"], "timezone": "UTC"} | fields}


@pytest.mark.parametrize(
    ("trigger", "field", "code"),
    [
        (None, "trigger", "invalid_type"),
        ([], "trigger", "invalid_type"),
        ({}, "trigger", "exactly_one_kind"),
        (_cron() | {"once": {}}, "trigger", "exactly_one_kind"),
        ({"corn": {}}, "trigger.corn", "unknown_field"),
        ({"cron": {"timezone": "UTC"}}, "trigger.cron.expressions", "required"),
        ({"cron": {"expressions": ["* * * * *"]}}, "trigger.cron.timezone", "required"),
        (_cron(expressions="* * * * *"), "trigger.cron.expressions", "invalid_type"),
        (_cron(expressions=[]), "trigger.cron.expressions", "out_of_range"),
        (_cron(expressions=["* * * * *"] * 11), "trigger.cron.expressions", "out_of_range"),
        (_cron(expressions=["* * * * *", True]), "trigger.cron.expressions.1", "invalid_type"),
        (_cron(expressions=["* * * * *", "0 0 31 2 *"]), "trigger.cron.expressions.1", "never_fires"),
        (_cron(timezone="Europe/Berln"), "trigger.cron.timezone", "unknown_timezone"),
        (_cron(timezone="../../etc/passwd"), "trigger.cron.timezone", "unknown_timezone"),
        (_cron(timezone="\ud800"), "trigger.cron.timezone", "unknown_timezone"),
        (_cron(timezone="x" * 40_000), "trigger.cron.timezone", "unknown_timezone"),
        (_cron(dst="auto"), "trigger.cron.dst", "invalid_type"),
        (_cron(dst={"nonexistent": "skp"}), "trigger.cron.dst.nonexistent", "invalid_choice"),
        (_cron(day_match="any"), "trigger.cron.day_match", "invalid_choice"),
        (_cron(expresions=[]), "trigger.cron.expresions", "unknown_field"),
        (_cron(**{"\ud800": 1}), "trigger.cron.?", "unknown_field"),
        (_cron(expressions=[float("nan")]), "trigger", "invalid_json"),
        (_cron(expressions=_nested(50)), "trigger.cron.expressions.0", "invalid_type"),
        (_cron(expressions=_nested(100_000)), "trigger", "invalid_json"),
        ({b"cron": 1}, "trigger", "invalid_json"),
        ({"interval": {}}, "trigger.interval.every_s", "required"),
        ({"interval": {"every_s": True}}, "trigger.interval.every_s", "invalid_type"),
        ({"interval": {"every_s": 1.5}}, "trigger.interval.every_s", "invalid_type"),
        ({"interval": {"every_s": 0}}, "trigger.interval.every_s", "out_of_range"),
        ({"interval": {"every_s": 10**30}}, "trigger.interval.every_s", "out_of_range"),
        ({"interval": {"every_s": 10**5000}}, "trigger", "invalid_json"),
        ({"interval": {"every_s": 1, "anchor": "now"}}, "trigger.interval.anchor", "invalid_timestamp"),
        ({"once": {"at": "9999-12-31T23:59:59-10:00"}}, "trigger.once.at", "out_of_range"),
        ({"once": {"at": "0001-01-01T00:00:00+10:00"}}, "trigger.once.at", "out_of_range"),
        (
            {"once": {"at": "0001-01-01T00:00:00", "timezone": "Asia/Tokyo"}},
            "trigger.once.at",
            "out_of_range",
        ),
        ({"once": {"at": "2026-02-30T00:00:00Z"}}, "trigger.once.at", "out_of_range"),
        ({"once": {"at": "2026-01-01T00:00:00"}}, "trigger.once.at", "offset_required"),
        ({"once": {"at": "\u0662026-01-01T00:00:00Z"}}, "trigger.once.at", "invalid_timestamp"),
        ({"once": {"at": 5}}, "trigger.once.at", "invalid_type"),
    ],
)
def test_refused_quickly_by_field_and_code(trigger: Any, field: str, code: str) -> None:
    begin = time.thread_time()
    with pytest.raises(TriggerError) as refused:
        parse_trigger(trigger)
    assert time.thread_time() - begin < 0.1  # of processor time
    assert (refused.value.field, refused.value.code) == (field, code)
    assert str(refused.value).encode()
    assert len(str(refused.value)) < 400


def test_a_near_miss_is_named() -> None:
    with pytest.raises(TriggerError, match="Did you mean 'Europe/Berlin'"):
        parse_trigger(_cron(timezone="europe/berln"))
    with pytest.raises(TriggerError, match="Did you mean 'cron'"):
        parse_trigger({"corn": {}})


@pytest.mark.parametrize(
    ("exclusion", "field"),
    [
        ({"date": "2026-02-30"}, "exclusions.0.date"),
        ({"from": "2026-01-02", "to": "2026-01-01"}, "exclusions.0.to"),
        ({"from": "2026-01-02"}, "exclusions.0"),
        ({"day": "2026-01-02"}, "exclusions.0.day"),
        ({"calendar": "unknown"}, "exclusions.0.calendar"),
    ],
)
def test_exclusions_are_refused_by_field(exclusion: dict[str, str], field: str) -> None:
    with pytest.raises(TriggerError) as refused:
        daily(exclusions=[exclusion])
    assert refused.value.field == field


RESTS = [{"from": "2026-12-04", "to": "2026-12-06"}, {"date": "2026-12-08"}]  # Friday to Sunday, and Tuesday


@given(
    st.datetimes(datetime(2026, 12, 1), datetime(2026, 12, 9)),  # noqa: DTZ001 - strategies are naive
    st.integers(1, 4 * 86400),
)
def test_a_fixed_delay_ends_on_the_first_of_its_multiples_that_is_not_excluded(
    ended_at: datetime, every_s: int
) -> None:
    trigger = parse_trigger(
        {"interval": {"every_s": every_s, "anchor": "2026-01-01T00:00:00Z"}}, exclusions=RESTS
    )
    ended_at = ended_at.replace(microsecond=ended_at.microsecond // 1000 * 1000, tzinfo=UTC)
    rests = {date(2026, 12, day) for day in (4, 5, 6, 8)}
    expected = ended_at + timedelta(seconds=every_s)
    while expected.date() in rests:
        expected += timedelta(seconds=every_s)
    assert trigger.next_after_end(ended_at) == expected
