"""Runs over HTTP: lists and their filters, one run with its story, cancelling."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from rest_framework.test import APIClient

from scheduler.models import Attempt, Occurrence, Schedule
from scheduler.operations import trigger_schedule
from scheduler.orm import database_time
from tenants.models import AuditEntry, Tenant
from tests import factories

pytestmark = pytest.mark.django_db

RUNS = "/api/v1/runs"


@pytest.fixture
def schedule(tenant: Tenant, target: Any) -> Schedule:
    return factories.schedule(tenant, tags=["reports"])


def ask(schedule: Schedule) -> Occurrence:
    run_id = trigger_schedule(schedule.tenant, schedule.id, request_key=uuid4(), actor=factories.ACTOR)
    return Occurrence.objects.get(id=run_id)


def start(run: Occurrence) -> Attempt:
    """As a release and a claim leave it."""
    now = database_time()
    rows = Occurrence.objects.filter(id=run.id)
    rows.update(state="QUEUED", wait_reason=None, generation=1, queued_at=now)
    rows.update(state="RUNNING", fence=88123, attempt_count=1, started_at=now)
    return Attempt.objects.create(
        run_id=run.id,
        due_at=run.due_at,
        fence=88123,
        number=1,
        session_id=uuid4(),
        worker="host:7",
        started_at=now,
    )


def ids(answer: Any) -> list[str]:
    return [row["id"] for row in answer.json()["results"]]


class TestLists:
    def test_the_latest_due_comes_first_in_pages(self, alice: APIClient, schedule: Schedule) -> None:
        made = [str(ask(schedule).id) for _ in range(5)]
        seen, link = [], f"{RUNS}?page_size=2"
        while link:
            answer = alice.get(link)
            seen += ids(answer)
            link = answer.json()["next"]
        assert sorted(seen) == sorted(made)
        dues = list(Occurrence.objects.order_by("-due_at", "-id").values_list("id", flat=True))
        assert seen == [str(run_id) for run_id in dues]

    def test_runs_of_one_instant_are_paged_completely(self, alice: APIClient, schedule: Schedule) -> None:
        made = [ask(schedule) for _ in range(5)]
        instant = made[0].due_at
        Occurrence.objects.update(due_at=instant)
        seen, link = [], f"{RUNS}?page_size=2"
        while link:
            answer = alice.get(link)
            seen += ids(answer)
            link = answer.json()["next"]
        assert seen == sorted((str(run.id) for run in made), reverse=True)

    def test_of_one_schedule(self, alice: APIClient, tenant: Tenant, schedule: Schedule) -> None:
        run, _ = ask(schedule), ask(factories.schedule(tenant, name="other"))
        assert ids(alice.get(f"/api/v1/schedules/{schedule.id}/runs")) == [str(run.id)]
        assert ids(alice.get(f"{RUNS}?schedule={schedule.id}")) == [str(run.id)]

    def test_filters(self, alice: APIClient, schedule: Schedule) -> None:
        run = ask(schedule)
        due_at = run.due_at.isoformat().replace("+00:00", "Z")
        later = (run.due_at + timedelta(seconds=1)).isoformat().replace("+00:00", "Z")
        found = ["state=PENDING", "state=PENDING&state=FAILED", f"due_after={due_at}", f"due_before={due_at}"]
        found += ["target=reports.build", "tag=reports", "page_size=200"]
        for query in found:
            assert ids(alice.get(f"{RUNS}?{query}")) == [str(run.id)], query
        for query in ["state=FAILED", f"due_after={later}", "target=other", "tag=other"]:
            assert ids(alice.get(f"{RUNS}?{query}")) == [], query

    @pytest.mark.parametrize(
        "query",
        [
            *("state=DONE", "due_after=x", "due_before=x", "schedule=x", "staet=FAILED", "cursor=x"),
            "due_after=0001-01-01T00:00:00%2B23:59",
            "due_before=9999-12-31T23:59:59-23:59",
        ],
    )
    def test_a_filter_that_is_not_understood_is_refused(self, alice: APIClient, query: str) -> None:
        answer = alice.get(f"{RUNS}?{query}")
        assert answer.status_code == 400
        assert answer.json()["errors"][0]["field"] == query.split("=")[0]


class TestOne:
    def test_a_waiting_run(self, alice: APIClient, schedule: Schedule) -> None:
        run = ask(schedule)
        shown = alice.get(f"{RUNS}/{run.id}").json()
        assert shown["schedule"] == str(schedule.id)
        assert (shown["origin"], shown["state"], shown["reason"]) == ("trigger", "PENDING", "due")
        assert (shown["target"], shown["revision"], shown["attempts"]) == ("reports.build", 1, [])
        assert shown["due_at"].endswith("Z")
        assert shown["why"].startswith("Waits for its time, ")
        assert [entry["event"] for entry in shown["timeline"]] == ["recorded"]

    def test_a_running_run(self, alice: APIClient, schedule: Schedule) -> None:
        attempt = start(ask(schedule))
        shown = alice.get(f"{RUNS}/{attempt.run_id}").json()
        clock = f"{attempt.started_at:%H:%M:%S}"
        assert shown["why"] == f"Running since {clock} UTC on host:7 under fence 88123."
        assert shown["attempts"][0] | {"started_at": ""} == {
            "number": 1,
            "fence": 88123,
            "worker": "host:7",
            "started_at": "",
            "finished_at": None,
            "outcome": None,
            "error": None,
            "trace_id": None,
        }
        assert [entry["event"] for entry in shown["timeline"]] == ["recorded", "released", "attempt started"]

    def test_a_run_that_failed_says_with_what(self, alice: APIClient, schedule: Schedule) -> None:
        run = ask(schedule)
        attempt = start(run)
        error = {"type": "ValueError", "message": "no such\nreport", "traceback": "..."}
        now = database_time()
        Attempt.objects.filter(fence=attempt.fence).update(outcome="failed", finished_at=now, error=error)
        Occurrence.objects.filter(id=run.id).update(state="DEAD_LETTERED", finished_at=now, error=error)
        shown = alice.get(f"{RUNS}/{run.id}").json()
        assert shown["why"] == "Attempt 1 failed (ValueError: no such report). All 1 attempts are used up."
        assert alice.get(f"/api/v1/schedules/{schedule.id}").json()["health"] == "failing"

    @pytest.mark.parametrize("run_id", [uuid4(), "ffffffff-ffff-ffff-ffff-ffffffffffff"])
    def test_an_id_that_nobody_has(self, alice: APIClient, run_id: Any) -> None:
        assert alice.get(f"{RUNS}/{run_id}").status_code == 404


class TestCancel:
    def test_what_waits(self, alice: APIClient, schedule: Schedule) -> None:
        run = ask(schedule)
        answer = alice.post(f"{RUNS}/{run.id}/cancel")
        assert (answer.status_code, answer.json()["state"]) == (202, "CANCELLED")
        assert "before it started" in answer.json()["why"]
        again = alice.post(f"{RUNS}/{run.id}/cancel")
        assert (again.status_code, again.json()["state"]) == (409, "CANCELLED")

    def test_what_runs_is_asked(self, alice: APIClient, schedule: Schedule) -> None:
        run = ask(schedule)
        start(run)
        answer = alice.post(f"{RUNS}/{run.id}/cancel").json()
        assert answer["state"] == "RUNNING"
        assert answer["cancel_requested_at"] is not None
        assert answer["why"].endswith("It was asked to stop.")


class TestRedriveAndDismiss:
    @pytest.fixture
    def failed(self, schedule: Schedule) -> Occurrence:
        run = ask(schedule)
        attempt = start(run)
        now = database_time()
        Attempt.objects.filter(fence=attempt.fence).update(outcome="failed", finished_at=now)
        Occurrence.objects.filter(id=run.id).update(state="DEAD_LETTERED", finished_at=now)
        return run

    def test_what_failed_waits_again(self, alice: APIClient, failed: Occurrence) -> None:
        Occurrence.objects.filter(id=failed.id).update(dispatch_at=database_time())
        answer = alice.post(f"{RUNS}/{failed.id}/redrive")
        assert (answer.status_code, answer.json()["state"]) == (202, "PENDING")
        again = alice.post(f"{RUNS}/{failed.id}/redrive")
        assert (again.status_code, again.json()["state"]) == (409, "PENDING")

    def test_what_is_dismissed_leaves_the_list(
        self, alice: APIClient, schedule: Schedule, failed: Occurrence
    ) -> None:
        url = f"/api/v1/schedules/{schedule.id}"
        assert alice.get(url).json()["health"] == "failing"
        assert ids(alice.get(f"{RUNS}?dismissed=false")) == [str(failed.id)]
        answer = alice.post(f"{RUNS}/{failed.id}/dismiss")
        assert (answer.status_code, answer.json()["state"]) == (202, "DEAD_LETTERED")
        assert answer.json()["dismissed_at"].endswith("Z")
        assert "Dismissed at" in answer.json()["why"]
        assert alice.post(f"{RUNS}/{failed.id}/dismiss").status_code == 202
        assert ids(alice.get(f"{RUNS}?state=DEAD_LETTERED&dismissed=false")) == []
        assert ids(alice.get(f"{RUNS}?dismissed=true")) == [str(failed.id)]
        assert alice.get(url).json()["health"] == "ok"

    def test_what_did_not_fail_is_not_dismissed(self, alice: APIClient, schedule: Schedule) -> None:
        answer = alice.post(f"{RUNS}/{ask(schedule).id}/dismiss")
        assert (answer.status_code, answer.json()["state"]) == (409, "PENDING")


class TestReconcile:
    @pytest.fixture
    def unknown(self, schedule: Schedule) -> Occurrence:
        run = ask(schedule)
        attempt = start(run)
        Attempt.objects.filter(fence=attempt.fence).update(outcome="lost", finished_at=database_time())
        Occurrence.objects.filter(id=run.id).update(state="UNKNOWN")
        return run

    @pytest.mark.parametrize(
        ("outcome", "state"), [("succeeded", "SUCCEEDED"), ("failed", "FAILED"), ("retry", "PENDING")]
    )
    def test_a_person_says_how_it_ended(
        self, outcome: str, state: str, alice: APIClient, unknown: Occurrence
    ) -> None:
        body = {"outcome": outcome, "note": "the bank's statement says so"}
        answer = alice.post(f"{RUNS}/{unknown.id}/reconcile", body)
        assert (answer.status_code, answer.json()["state"]) == (202, state)
        assert (answer.json()["reconciled_at"] is None) == (state == "PENDING")
        entry = AuditEntry.objects.get(action="run.reconcile")
        assert entry.after == {"state": state, "note": "the bank's statement says so"}
        again = alice.post(f"{RUNS}/{unknown.id}/reconcile", body)
        assert (again.status_code, again.json()["state"]) == (409, state)

    @pytest.mark.parametrize(("outcome", "told"), [("succeeded", "it succeeded"), ("failed", "it failed")])
    def test_that_somebody_said_so_is_in_the_sentence(
        self, outcome: str, told: str, alice: APIClient, unknown: Occurrence
    ) -> None:
        why = alice.post(f"{RUNS}/{unknown.id}/reconcile", {"outcome": outcome}).json()["why"]
        assert why.startswith("Attempt 1 was lost with its worker. Reconciled at ")
        assert f": {told}." in why

    def test_a_holder_that_came_back_late_and_knew_is_no_person(
        self, alice: APIClient, unknown: Occurrence
    ) -> None:
        at = database_time()
        attempt = Attempt.objects.get(run_id=unknown.id)
        Attempt.objects.filter(fence=attempt.fence).update(outcome="succeeded", finished_at=at)
        Occurrence.objects.filter(id=unknown.id).update(state="SUCCEEDED", finished_at=at, reconciled_at=at)
        assert alice.get(f"{RUNS}/{unknown.id}").json()["why"].startswith("Attempt 1 succeeded at ")

    def test_of_one_that_is_tried_again_the_attempts_so_far_are_forgiven(
        self, alice: APIClient, unknown: Occurrence
    ) -> None:
        alice.post(f"{RUNS}/{unknown.id}/reconcile", {"outcome": "retry"})
        unknown.refresh_from_db()
        assert (unknown.attempt_count, unknown.attempts_forgiven) == (1, 1)

    def test_another_outcome_is_refused_with_the_choices(self, alice: APIClient, unknown: Occurrence) -> None:
        answer = alice.post(f"{RUNS}/{unknown.id}/reconcile", {"outcome": "perhaps"})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "outcome")
