"""Limits of time and failures over HTTP: they are kept as written, have their defaults, and say why."""

from typing import Any

import pytest
from rest_framework.test import APIClient

from scheduler.models import Occurrence, ScheduleRevision, Target
from scheduler.orm import database_time, raw_connection
from scheduler.store import failures
from tenants.models import Tenant
from tests import factories
from tests.api.test_schedules import SCHEDULES, create, url

pytestmark = pytest.mark.django_db

LIMITS: dict[str, Any] = {
    "retry": {
        "max_attempts": 3,
        "initial_interval_s": 1,
        "backoff": 2.0,
        "max_interval_s": 300,
        "deadline_s": 600,
    },
    "timeout_s": 60,
    "cancel_grace_s": 5,
    "heartbeat_timeout_s": 20,
    "schedule_to_start_s": 30,
    "on_failure": {"pause_after": 3},
}
NONE: dict[str, Any] = {
    "cancel_grace_s": 30,
    "heartbeat_timeout_s": None,
    "schedule_to_start_s": None,
    "on_failure": {"pause_after": None},
}


def shown(answer: Any, names: Any = LIMITS) -> dict[str, Any]:
    return {name: answer.json()[name] for name in names}


def test_limits_are_kept_as_written_and_an_edit_replaces_them_whole(alice: APIClient) -> None:
    created = create(alice, **LIMITS)
    assert shown(created) == LIMITS
    assert shown(alice.get(url(created))) == LIMITS
    edited = alice.patch(url(created), {"retry": {"max_attempts": 4}}, headers={"If-Match": '"1"'})
    assert edited.json()["retry"] == {**LIMITS["retry"], "max_attempts": 4, "deadline_s": None}
    assert shown(edited) == {**LIMITS, "retry": edited.json()["retry"]}
    nothing = dict.fromkeys(NONE)
    cleared = alice.patch(url(created), nothing, headers={"If-Match": '"2"'})
    assert shown(cleared, NONE) == NONE


def test_what_a_body_does_not_say_its_target_does(alice: APIClient) -> None:
    own = {"timeout_s": 90, "cancel_grace_s": 7, "heartbeat_timeout_s": 40}
    Target.objects.update(**own, retry={"max_attempts": 2, "deadline_s": 50})
    created = create(alice)
    assert shown(created, own) == own
    assert created.json()["retry"]["deadline_s"] == 50
    shorter = create(alice, name="shorter", timeout_s=30)
    assert shorter.json()["heartbeat_timeout_s"] is None  # a silence as long as the attempt bounds nothing


def test_a_preview_is_not_touched_by_limits(alice: APIClient) -> None:
    draft = factories.body()
    plain, limited = (alice.post(f"{SCHEDULES}/preview", {**draft, **more}).json() for more in ({}, LIMITS))
    assert plain == limited


@pytest.mark.parametrize(
    ("state", "columns", "sentence"),
    [
        ("SKIPPED", {"skip_reason": "expired"}, "it could not start within the time"),
        ("DEAD_LETTERED", {"dead_letter_reason": "expired"}, "its deadline leaves no time"),
        ("DEAD_LETTERED", {"dead_letter_reason": "exhausted"}, "attempts are used up"),
    ],
)
def test_a_run_that_came_too_late_says_so(
    state: str, columns: dict[str, str], sentence: str, alice: APIClient
) -> None:
    created = create(alice)
    run_id = alice.post(url(created, "/trigger")).json()["run_id"]
    now = database_time()
    Occurrence.objects.filter(id=run_id).update(wait_reason=None, state="QUEUED", queued_at=now, generation=1)
    Occurrence.objects.filter(id=run_id).update(state=state, finished_at=now, **columns)
    run = alice.get(f"/api/v1/runs/{run_id}").json()
    assert sentence in run["why"]
    assert run["reason"] in columns.values()
    explained = alice.get(url(created, "/explain"), {"at": run["due_at"]}).json()
    assert (explained["run_id"], sentence in explained["sentence"]) == (run_id, True)


def test_a_schedule_that_failures_paused_says_so_and_a_person_may_resume_it(
    alice: APIClient, tenant: Tenant
) -> None:
    created = create(alice, on_failure={"pause_after": 1})
    run_id = alice.post(url(created, "/trigger")).json()["run_id"]
    now = database_time()
    rows = Occurrence.objects.filter(id=run_id)
    rows.update(wait_reason=None, state="QUEUED", queued_at=now, generation=1)
    rows.update(state="DEAD_LETTERED", finished_at=now)
    schedule_id = ScheduleRevision.objects.get().schedule_id
    raw = raw_connection()
    failures.lock_schedules(raw, [schedule_id])
    assert failures.pause_if_failing(raw, schedule_id)
    note = "Paused after 1 failed runs in a row."
    paused = alice.get(url(created)).json()
    assert (paused["state"], paused["state_note"]) == ("paused", note)
    resumed = alice.post(url(created, "/resume")).json()
    assert (resumed["state"], resumed["next_due_at"] is None) == ("active", False)
    assert not failures.pause_if_failing(raw, schedule_id)


def test_progress_is_shown_while_it_runs_and_after(alice: APIClient) -> None:
    created = create(alice)
    run_id = alice.post(url(created, "/trigger")).json()["run_id"]
    progress = {"percent": 40, "note": "page 4", "resume": {"page": 5}}
    Occurrence.objects.filter(id=run_id).update(progress=progress)
    assert alice.get(f"/api/v1/runs/{run_id}").json()["progress"] == progress
