"""What endpoints say of runs that they have accepted: heartbeats and completions, late and twice."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from rest_framework.test import APIClient

from scheduler.models import Attempt, Occurrence, Schedule, ScheduleRevision, Target
from scheduler.operations import cancel_run, trigger_schedule
from scheduler.orm import database_time, raw_connection
from tenants.models import Tenant
from tests import factories

pytestmark = pytest.mark.django_db

FENCE = 88123


@pytest.fixture
def run(tenant: Tenant, target: Target) -> Occurrence:
    """Accepted by its endpoint, which promises a heartbeat a minute."""
    Target.objects.update(kind="http", url="https://reports.example/", heartbeat_timeout_s=60)
    schedule = factories.schedule(tenant, retry={"max_attempts": 2}, cancel_grace_s=5)
    run_id = trigger_schedule(tenant, schedule.id, request_key=uuid4(), actor=factories.ACTOR)
    made, now = Occurrence.objects.get(id=run_id), database_time()
    rows = Occurrence.objects.filter(id=run_id)
    rows.update(state="QUEUED", wait_reason=None, generation=1, queued_at=now)
    rows.update(state="RUNNING", fence=FENCE, attempt_count=1, started_at=now)
    Attempt.objects.create(
        run_id=run_id,
        due_at=made.due_at,
        fence=FENCE,
        number=1,
        session_id=uuid4(),
        worker="h:1",
        started_at=now,
    )
    sql("DELETE FROM outbox")
    sql(
        "INSERT INTO lease (run_id, due_at, session_id, fence, claim_id, granted_at, ends_by, expires_at)"
        f" SELECT id, due_at, '00000000-0000-0000-0000-000000000000', {FENCE}, gen_random_uuid(), now(),"
        " now() + interval '1 hour', now() + interval '1 second' FROM occurrence"
    )
    made.refresh_from_db()
    return made


def sql(statement: str) -> list[tuple[Any, ...]]:
    with raw_connection().cursor() as cursor:
        cursor.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def tell(client: APIClient, run: Occurrence, verb: str, **body: Any) -> Any:
    return client.post(f"/api/v1/runs/{run.id}/{verb}", {"fence": FENCE, **body}, format="json")


def lose(run: Occurrence, state: str) -> None:
    """As the sweep does."""
    sql("DELETE FROM lease")
    now = database_time()
    Attempt.objects.update(outcome="lost", finished_at=now)
    Occurrence.objects.filter(id=run.id).update(state=state)


class TestHeartbeats:
    def test_one_renews_the_lease_and_shows_progress(self, alice: APIClient, run: Occurrence) -> None:
        answer = tell(alice, run, "heartbeat", percent=40, note="page 4", resume={"page": 5})
        assert answer.status_code == 200
        body, now = answer.json(), database_time()
        assert not body["cancel_requested"]
        assert (now + timedelta(seconds=50)).isoformat() < body["lease_expires_at"] < body["ends_by"]
        tell(alice, run, "heartbeat", percent=60)
        run.refresh_from_db()
        assert run.progress == {"percent": 60, "note": "page 4", "resume": {"page": 5}}
        assert "Accepted by its endpoint" in alice.get(f"/api/v1/runs/{run.id}").json()["why"]

    def test_before_the_worker_has_let_go_it_is_no_error(self, alice: APIClient, run: Occurrence) -> None:
        """An endpoint may report before our record of its 202."""
        sql(f"UPDATE lease SET expires_at = NULL, session_id = '{uuid4()}'")
        answer = tell(alice, run, "heartbeat", percent=1)
        assert (answer.status_code, answer.json()["lease_expires_at"]) == (200, None)
        assert sql("SELECT expires_at FROM lease") == [(None,)]

    def test_without_a_promise_none_is_due(self, alice: APIClient, run: Occurrence) -> None:
        ScheduleRevision.objects.update(heartbeat_timeout_s=None)
        assert tell(alice, run, "heartbeat").json()["lease_expires_at"] is None
        assert sql("SELECT expires_at = 'infinity' FROM lease") == [(True,)]

    def test_a_wish_to_stop_is_told_and_has_its_grace(
        self, alice: APIClient, tenant: Tenant, run: Occurrence
    ) -> None:
        cancel_run(tenant, run.id, actor=factories.ACTOR)
        answer = tell(alice, run, "heartbeat").json()
        assert answer["cancel_requested"]
        assert answer["ends_by"] < (database_time() + timedelta(seconds=6)).isoformat()
        assert tell(alice, run, "complete", outcome="failed").json()["state"] == "CANCELLED"

    def test_a_void_fence_is_refused_and_the_one_in_force_not_told(
        self, alice: APIClient, run: Occurrence
    ) -> None:
        for fence in (FENCE - 1, FENCE + 1):
            answer = tell(alice, run, "heartbeat", fence=fence, percent=1)
            assert (answer.status_code, answer.json()["code"]) == (409, "superseded_fence")
            assert str(FENCE) not in answer.content.decode()
        run.refresh_from_db()
        assert run.progress is None

    @pytest.mark.parametrize(
        "body",
        [
            {"fence": "x"},
            {"fence": 0},
            {"fence": 2**63},
            {"percent": 101},
            {"percent": "NaN"},
            {"note": "x" * 501},
            {"resume": "x" * 5_000},
            {"resume": "\u0000"},
            {"progress": 1},
        ],
    )
    def test_what_cannot_be_is_refused(self, alice: APIClient, run: Occurrence, body: Any) -> None:
        assert tell(alice, run, "heartbeat", **body).status_code == 400


class TestCompletions:
    @pytest.mark.parametrize(
        ("outcome", "state"), [("succeeded", "SUCCEEDED"), ("failed", "FAILED"), ("retry", "RETRY_WAIT")]
    )
    def test_a_run_ends_as_its_endpoint_says_once(
        self, alice: APIClient, run: Occurrence, outcome: str, state: str
    ) -> None:
        said = {"outcome": outcome, "result": {"rows": 3}, "error": "" if outcome == "succeeded" else "no"}
        for _ in range(2):
            answer = tell(alice, run, "complete", **said)
            assert (answer.status_code, answer.json()["state"]) == (200, state)
        assert answer.json()["result"] == {"rows": 3}
        assert answer.json()["late_writes_refused"] == 0
        assert sql("SELECT count(*) FROM lease") == [(0,)]
        (attempt,) = answer.json()["attempts"]
        assert attempt["outcome"] == ("succeeded" if outcome == "succeeded" else "failed")

    def test_another_end_than_the_one_on_record_is_refused(self, alice: APIClient, run: Occurrence) -> None:
        tell(alice, run, "complete", outcome="retry")
        for outcome in ("succeeded", "failed"):
            answer = tell(alice, run, "complete", outcome=outcome)
            assert (answer.status_code, answer.json()["code"]) == (409, "superseded_fence")
        run.refresh_from_db()
        assert (run.state, run.late_writes_refused) == ("RETRY_WAIT", 2)

    def test_a_retry_comes_when_it_was_asked_for_and_within_the_attempts(
        self, alice: APIClient, run: Occurrence
    ) -> None:
        tell(alice, run, "complete", outcome="retry", retry_after_s=90)
        ((seconds,),) = sql("SELECT extract(epoch FROM dispatch_at - clock_timestamp()) FROM outbox")
        assert 80 < seconds <= 90

    def test_the_last_attempt_is_not_tried_again(self, alice: APIClient, run: Occurrence) -> None:
        Occurrence.objects.update(attempt_count=2)
        assert tell(alice, run, "complete", outcome="retry").json()["state"] == "DEAD_LETTERED"

    def test_a_fence_that_the_sweep_has_ended_is_refused_and_counted(
        self, alice: APIClient, run: Occurrence
    ) -> None:
        lose(run, "RETRY_WAIT")
        answer = tell(alice, run, "complete", outcome="succeeded")
        assert (answer.status_code, answer.json()["code"]) == (409, "superseded_fence")
        run.refresh_from_db()
        assert (run.state, run.late_writes_refused) == ("RETRY_WAIT", 1)

    def test_an_unsafe_run_is_not_sent_back_by_its_endpoint(self, alice: APIClient, run: Occurrence) -> None:
        Target.objects.update(side_effects="unsafe_external")
        answer = tell(alice, run, "complete", outcome="retry")
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "outcome")

    @pytest.mark.parametrize(("outcome", "state"), [("succeeded", "SUCCEEDED"), ("failed", "FAILED")])
    def test_under_its_last_fence_an_unknown_outcome_is_resolved(
        self, alice: APIClient, run: Occurrence, outcome: str, state: str
    ) -> None:
        Target.objects.update(side_effects="unsafe_external")
        lose(run, "UNKNOWN")
        assert tell(alice, run, "complete", fence=FENCE - 1, outcome=outcome).status_code == 409
        for _ in range(2):
            assert tell(alice, run, "complete", outcome=outcome).json()["state"] == state

    def test_before_the_worker_has_let_go_it_stands(self, alice: APIClient, run: Occurrence) -> None:
        sql(f"UPDATE lease SET expires_at = NULL, session_id = '{uuid4()}'")
        assert tell(alice, run, "complete", outcome="succeeded").json()["state"] == "SUCCEEDED"

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"outcome": "done"},
            {"outcome": "failed", "retry_after_s": -1},
            {"outcome": "succeeded", "result": "x" * 70_000},
            {"outcome": "succeeded", "result": "\u0000"},
            {"outcome": "succeeded", "fence": None},
        ],
    )
    def test_what_cannot_be_is_refused(self, alice: APIClient, run: Occurrence, body: Any) -> None:
        assert tell(alice, run, "complete", **body).status_code == 400
        run.refresh_from_db()
        assert run.state == "RUNNING"


def test_a_workers_run_is_not_reported_on(alice: APIClient, tenant: Tenant, target: Target) -> None:
    schedule: Schedule = factories.schedule(tenant)
    run_id = trigger_schedule(tenant, schedule.id, request_key=uuid4(), actor=factories.ACTOR)
    answer = alice.post(f"/api/v1/runs/{run_id}/heartbeat", {"fence": 1}, format="json")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
