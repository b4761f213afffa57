"""How triggers, instants and errors read."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from scheduler.core.triggers import parse_trigger
from scheduler.trigger_words import plain_words, zone_name
from tenants.dashboard import presentation

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


def cron(*expressions: str, **fields: str) -> dict[str, object]:
    return {"cron": {"expressions": list(expressions), "timezone": "Europe/Berlin", **fields}}


@pytest.mark.parametrize(
    ("trigger", "words"),
    [
        (cron("0 9 * * 1-5"), "At 09:00, Monday through Friday"),
        (cron("*/15 * * * *"), "Every 15 minutes"),
        (cron("0 9 * * FRI-MON"), "At 09:00, Friday through Monday"),
        (cron("@daily"), "At 00:00"),
        (cron("0 6 * * *", "0 18 * * SAT"), "At 06:00; At 18:00, only on Saturday"),
        (cron("0 0 LW * *"), "At 00:00, on the last weekday of the month"),
        (cron("0 9 * * 5L"), "At 09:00, on the last Friday of the month"),
        # Either day field matches here, and both must below: words with "or" would be wrong.
        (cron("0 0 13 * 5"), "At 00:00, on day 13 of the month, or on Friday"),
        (cron("0 0 13 * 5", day_match="both"), "0 0 13 * 5"),
        (cron("0 0 */2 * 5"), "0 0 */2 * 5"),
        ({"interval": {"every_s": 1}}, "Every second"),
        ({"interval": {"every_s": 90}}, "Every 90 seconds"),
        ({"interval": {"every_s": 7200}}, "Every 2 hours"),
        ({"interval": {"every_s": 86400}}, "Every day"),
        ({"once": {"at": "2030-01-01T00:00:00Z"}}, "Once, at 2030-01-01T00:00:00Z"),
    ],
)
def test_triggers_in_plain_words(trigger: dict[str, object], words: str) -> None:
    parse_trigger(trigger, default_anchor=NOON)
    assert plain_words(trigger) == words


@pytest.mark.parametrize(
    "expression", ["0 0 L-3 * *", "0 22-2 * * *", "5/10 * ? * MON", "0 0 15W 1-3 *", "59 23 31 12 *"]
)
def test_whatever_core_accepts_gets_words(expression: str) -> None:
    trigger = cron(expression)
    parse_trigger(trigger)
    assert plain_words(trigger)


def test_the_zone_is_the_triggers_own_or_utc() -> None:
    assert zone_name(cron("0 0 * * *")) == "Europe/Berlin"
    assert zone_name({"interval": {"every_s": 5}}) == "UTC"
    assert zone_name({"once": {"at": "2030-01-01T00:00:00Z", "timezone": None}}) == "UTC"


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        ("Europe/Berlin", "Wed 1 Jul 2026, 14:00 CEST"),
        ("UTC", "Wed 1 Jul 2026, 12:00 UTC"),
        ("Asia/Kathmandu", "Wed 1 Jul 2026, 17:45 UTC+05:45"),
    ],
)
def test_instants_read_in_their_zone(zone: str, text: str) -> None:
    assert presentation.local_text(NOON, ZoneInfo(zone)) == text


def test_seconds_show_where_there_are_any() -> None:
    assert "12:00:07 UTC" in presentation.local_text(NOON + timedelta(seconds=7), UTC)


@pytest.mark.parametrize(
    ("ahead", "text"),
    [
        (timedelta(seconds=5), "in 5 s"),
        (timedelta(minutes=-3), "3 min ago"),
        (timedelta(hours=14, minutes=59), "in 14 h"),
        (timedelta(days=-40), "40 d ago"),
        (timedelta(), "0 s ago"),
    ],
)
def test_distances(ahead: timedelta, text: str) -> None:
    assert presentation.distance(NOON + ahead, NOON) == text


@pytest.mark.parametrize(
    ("error", "headline", "details"),
    [
        ({"type": "KeyError", "message": "x", "traceback": "t"}, "KeyError: x", "traceback: t"),
        ({"message": "x"}, "x", ""),
        ({}, "No message", ""),
        ("broken", "broken", ""),
    ],
)
def test_errors_have_a_headline_whatever_was_stored(error: object, headline: str, details: str) -> None:
    text = presentation.error_text(error)
    assert (text.headline, text.details) == (headline, details)
