"""All zones, the years 1990 to 2100: against the brute force, and how the fields of a trigger compose."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID
from zoneinfo import available_timezones

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from scheduler.core.spread import dispatch_offset
from scheduler.core.triggers import parse_trigger
from tests.core.test_properties import EXPRESSIONS, QUICK, _parsed
from tests.support import oracle

MICROSECOND = timedelta(microseconds=1)
SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

ZONES = st.sampled_from(sorted(available_timezones()))
BEGIN = datetime(1990, 1, 1, tzinfo=UTC)
MOMENTS = st.integers(0, 111 * 366 * 24 * 60).map(lambda minutes: BEGIN + timedelta(minutes=minutes))


@st.composite
def situations(draw: st.DrawFn) -> tuple[dict[str, Any], datetime]:
    """Half of them at the hours in which most clocks change, at the ends of March and October."""
    fields = {
        "expressions": draw(st.lists(EXPRESSIONS, min_size=1, max_size=3)),
        "timezone": draw(ZONES),
        "day_match": draw(st.sampled_from(["classic", "either", "both"])),
        "dst": {
            "nonexistent": draw(st.sampled_from(["auto", "skip", "shift_forward"])),
            "repeated": draw(st.sampled_from(["auto", "first", "second", "both"])),
        },
    }
    moment = draw(MOMENTS)
    if draw(st.booleans()):
        moment = moment.replace(month=draw(st.sampled_from([3, 4, 10, 11])), day=draw(st.integers(1, 30)))
    return fields, moment


@SLOW
@given(situations(), st.integers(1, 60))
def test_in_any_zone_and_year_the_instants_are_those_of_the_brute_force(
    situation: tuple[dict[str, Any], datetime], hours: int
) -> None:
    fields, start = situation
    end = start + timedelta(hours=hours)
    trigger = _parsed(fields)
    found = list(trigger.between(start, end)) if trigger else []
    assert found == oracle.instants(
        fields["expressions"],
        fields["timezone"],
        start,
        end,
        day_match=fields["day_match"],
        **fields["dst"],
    )


@QUICK
@given(situations())
def test_walking_on_is_strictly_later_and_the_inverse_of_walking_back(
    situation: tuple[dict[str, Any], datetime],
) -> None:
    fields, start = situation
    trigger = _parsed(fields)
    assume(trigger is not None)
    assert trigger is not None
    walked: list[datetime] = [start]
    for _ in range(5):
        following = trigger.next_after(walked[-1])
        if following is None:
            break
        walked.append(following)
    assert all(earlier < later for earlier, later in pairwise(walked))
    for earlier, later in pairwise(walked[1:]):
        assert trigger.previous_at_or_before(later - MICROSECOND) == earlier
        assert trigger.previous_at_or_before(later) == later


@QUICK
@given(situations(), st.integers(0, 500), st.integers(0, 500))
def test_unions_bounds_and_exclusions_compose(
    situation: tuple[dict[str, Any], datetime], first_h: int, length_h: int
) -> None:
    fields, start = situation
    end = start + timedelta(days=12)
    each = [_parsed({**fields, "expressions": [expression]}) for expression in fields["expressions"]]
    assume(all(each))
    together = parse_trigger({"cron": fields})
    union = {instant for one in each if one for instant in one.between(start, end)}
    listed = list(together.between(start, end))
    assert listed == sorted(union)
    first = start + timedelta(hours=first_h % 288)
    last = first + timedelta(hours=length_h)
    rest = (start + timedelta(days=3)).date()
    bounded = parse_trigger(
        {"cron": fields}, start_at=first, end_at=last, exclusions=[{"date": rest.isoformat()}]
    )
    kept = [
        instant
        for instant in listed
        if first <= instant <= last and instant.astimezone(together.zone).date() != rest
    ]
    assert list(bounded.between(start, end)) == kept


@given(st.uuids(), st.integers(0, 366 * 86400))
def test_an_offset_lies_in_its_window_and_grows_with_it(schedule_id: UUID, window_s: int) -> None:
    offset = dispatch_offset(schedule_id, window_s)
    assert timedelta(0) <= offset
    assert offset < timedelta(seconds=window_s) or window_s == 0
    assert offset.microseconds % 1000 == 0
    assert offset <= dispatch_offset(schedule_id, window_s + 1)


def test_every_host_computes_the_same_offset() -> None:
    script = (
        "from uuid import UUID; from scheduler.core.spread import dispatch_offset\n"
        "print([dispatch_offset(UUID(int=n), 3600).total_seconds() for n in range(20)])"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "TZ": zone},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, zone in (("1", "UTC"), ("2", "Asia/Tokyo"))
    }
    here = [dispatch_offset(UUID(int=n), 3600).total_seconds() for n in range(20)]
    assert answers == {f"{here}\n"}
    assert len(set(here)) == 20
