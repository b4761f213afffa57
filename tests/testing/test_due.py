"""The plugin for applications: what is due runs in the test."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from scheduler.errors import PermanentError, RetryLater
from scheduler.jobs import Context, cron, every, job, run_now, schedule_at
from scheduler.models import Occurrence, Schedule
from scheduler.testing.due import Fencepost
from scheduler.testing.plugin import fencepost as fencepost
from scheduler.worker import registry

seen: list[tuple[str, Any]] = []


@job("tests.due.note", retry=None)
def note(ctx: Context, text: str = "") -> str:
    seen.append((text, ctx.resume))
    return text


@job("tests.due.moody")
def moody(ctx: Context, how: str) -> None:
    seen.append((how, ctx.resume))
    ctx.heartbeat(resume={"attempt": ctx.attempt})
    if how == "later" and ctx.attempt == 1:
        raise RetryLater(after=3600)
    if how == "database" and ctx.attempt == 1:
        with connection.cursor() as cursor:
            cursor.execute("SELECT nothing_of_the_kind")
    if how == "broken":
        raise PermanentError("no")


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


def test_what_was_asked_for_runs_with_its_payload(fencepost: Fencepost) -> None:
    run_now("tests.due.note", {"text": "hello"}, tenant=fencepost.tenant())
    (ran,) = fencepost.run_due()
    assert (ran.state, ran.result, ran.attempt, ran.payload) == ("SUCCEEDED", "hello", 1, {"text": "hello"})
    assert Occurrence.objects.get(id=ran.run_id).state == "SUCCEEDED"
    assert fencepost.run_due() == []


def test_nothing_runs_before_its_time(fencepost: Fencepost) -> None:
    tenant = fencepost.tenant()
    schedule_at(fencepost.now + timedelta(hours=2), "tests.due.note", tenant=tenant)
    assert fencepost.run_due() == []
    fencepost.advance(hours=1, minutes=59)
    assert fencepost.run_due() == []
    fencepost.advance(minutes=2)
    assert [ran.state for ran in fencepost.run_due()] == ["SUCCEEDED"]


def test_a_schedule_runs_as_its_policies_say(fencepost: Fencepost) -> None:
    note.schedule(
        cron("0 2 * * *", timezone="UTC"), name="nightly", tenant=fencepost.tenant(), catch_up="run_all"
    )
    fencepost.advance(days=3)
    assert len(fencepost.run_due()) == 3
    latest = {"name": "minutely", "tenant": "test", "catch_up": "run_latest_only"}
    note.schedule(every(60), **latest, payload={"text": "minutely"})
    fencepost.advance(hours=5)
    assert len([ran for ran in fencepost.run_due() if ran.result == "minutely"]) == 1


@pytest.mark.parametrize("how", ["later", "database"])
def test_a_retry_runs_when_it_is_due_with_what_the_first_attempt_left(fencepost: Fencepost, how: str) -> None:
    run_now("tests.due.moody", {"how": how}, tenant=fencepost.tenant())
    first = fencepost.run_due()
    fencepost.advance(hours=2)
    states = [ran.state for ran in [*first, *fencepost.run_due()]]
    assert states == ["RETRY_WAIT", "SUCCEEDED"]
    if how == "later":
        assert seen == [("later", None), ("later", {"attempt": 1})]


def test_a_failure_is_told_with_its_error(fencepost: Fencepost) -> None:
    run_now("tests.due.moody", {"how": "broken"}, tenant=fencepost.tenant())
    (ran,) = fencepost.run_due()
    assert (ran.state, ran.error and ran.error["type"]) == ("FAILED", "PermanentError")


def test_a_target_without_a_job_is_an_error_that_says_so(
    fencepost: Fencepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_now("tests.due.note", tenant=fencepost.tenant())
    monkeypatch.setattr(registry, "_jobs", {})
    with pytest.raises(AssertionError, match=r"'tests\.due\.note' is due, and is no job"):
        fencepost.run_due()


@pytest.mark.django_db(transaction=True)
def test_in_a_test_that_commits_it_works_the_same_and_leaves_nothing(
    transactional_db: None, fencepost: Fencepost
) -> None:
    with transaction.atomic():
        note.run_now(text="committed", tenant=fencepost.tenant())
    fencepost.advance(days=1)
    assert [ran.result for ran in fencepost.run_due()] == ["committed"]
    fencepost.leave()
    assert not Occurrence.objects.exists()
    assert abs(fencepost.now - Schedule.objects.get().created_at) < timedelta(hours=1)
