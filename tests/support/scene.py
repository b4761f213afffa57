"""Two tenants and their people, with schedules and runs, for tests of pages.

Alice owns the tenant `acme`, Bob may only look at it, Charlie belongs to another one.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from secrets import token_bytes
from typing import Any
from uuid import UUID, uuid4

from django.contrib.auth.models import User
from django.db import connection

from scheduler import operations
from scheduler.core import identity
from scheduler.core.states import TERMINAL, State
from scheduler.models import Attempt, Occurrence, Schedule, Target
from scheduler.orm import database_time
from tenants.models import Role, Tenant
from tenants.operations import Actor, create_tenant, set_membership

ACTOR = Actor(name="tests")
PASSWORD = "correct horse battery"
WEEKDAYS_AT_NINE = {"cron": {"expressions": ["0 9 * * 1-5"], "timezone": "Europe/Berlin"}}

# How a run comes to its state: the database refuses any other road.
_ROADS = {
    State.PENDING: (),
    State.SKIPPED: (State.SKIPPED,),
    State.QUEUED: (State.QUEUED,),
    State.RUNNING: (State.QUEUED, State.RUNNING),
    State.CANCELLED: (State.CANCELLED,),
}


@dataclass(frozen=True, kw_only=True)
class Scene:
    acme: Tenant
    other: Tenant
    alice: User
    bob: User
    charlie: User
    target: Target


def make_scene() -> Scene:
    acme, other = (create_tenant(slug, name=slug.capitalize(), actor=ACTOR) for slug in ("acme", "umbrella"))
    alice, bob, charlie = (make_user(name) for name in ("alice", "bob", "charlie"))
    set_membership(acme, alice, Role.ADMIN, actor=ACTOR)
    set_membership(acme, bob, Role.VIEWER, actor=ACTOR)
    set_membership(other, charlie, Role.ADMIN, actor=ACTOR)
    target = make_target("reports.build")
    return Scene(acme=acme, other=other, alice=alice, bob=bob, charlie=charlie, target=target)


def make_user(name: str, **extra: Any) -> User:
    email = f"{name}@example.com"
    return User.objects.create_user(email, email, PASSWORD, **extra)


def make_target(name: str) -> Target:
    schema = {
        "type": "object",
        "properties": {"kind": {"type": "string"}, "rows": {"type": "integer"}},
        "additionalProperties": False,
    }
    return Target.objects.create(name=name, everyone=True, parameters=schema, created_at=database_time())


def make_schedule(tenant: Tenant, name: str = "nightly-report", **body: Any) -> Schedule:
    draft = {"name": name, "target": "reports.build", "trigger": WEEKDAYS_AT_NINE, **body}
    return operations.create_schedule(tenant, draft, actor=ACTOR)


def make_run(
    schedule: Schedule,
    state: State = State.SUCCEEDED,
    *,
    ago: timedelta = timedelta(minutes=5),
    outcomes: tuple[str | None, ...] = (),
    attempt_error: dict[str, Any] | None = None,
    **columns: Any,
) -> Occurrence:
    """A run due `ago`, with an attempt for each outcome (None: it is still going)."""
    due_at = identity.whole_millisecond(database_time() - ago)
    run = Occurrence.objects.create(
        id=identity.run_id(due_at, token_bytes(10)),
        due_at=due_at,
        schedule=schedule,
        revision=schedule.revision,
        origin="trigger",
        origin_key=uuid4(),
        tenant=schedule.tenant,
        shard=schedule.shard,
        overlap="allow",
        state=State.PENDING,
        wait_reason="due",
        dispatch_at=due_at,
        generation=0,
        attempt_count=0,
        overdue=False,
        coalesced=0,
        created_at=due_at,
        late_writes_refused=0,
        tzdata_version="test",
    )
    fences = [_make_attempt(run, n, outcome, attempt_error) for n, outcome in enumerate(outcomes, start=1)]
    _walk(run, state, fences, columns)
    run.refresh_from_db()
    return run


def _walk(run: Occurrence, state: State, fences: list[int], columns: dict[str, Any]) -> None:
    for step in _ROADS.get(state, (State.QUEUED, State.RUNNING, state)):
        changes: dict[str, Any] = {"state": step, "wait_reason": None}
        if step == State.QUEUED:
            changes |= {"queued_at": run.due_at, "generation": 1}
        if step == State.RUNNING:
            changes |= {
                "started_at": run.due_at,
                "attempt_count": max(1, len(fences)),
                "fence": max(fences, default=1),
            }
        if step == State.SKIPPED:
            changes |= {"skip_reason": "overlap"}
        if step in TERMINAL:
            changes |= {"finished_at": run.due_at + timedelta(seconds=2)}
        Occurrence.objects.filter(due_at=run.due_at, id=run.id).update(**changes)
    if columns:
        Occurrence.objects.filter(due_at=run.due_at, id=run.id).update(**columns)


def _make_attempt(run: Occurrence, number: int, outcome: str | None, error: dict[str, Any] | None) -> int:
    started_at = run.due_at + timedelta(seconds=number - 1)
    attempt = Attempt.objects.create(
        fence=_next_fence(),
        run_id=run.id,
        due_at=run.due_at,
        number=number,
        session_id=UUID(int=1),
        worker="worker-1:4242",
        started_at=started_at,
        finished_at=_end(started_at, outcome),
        outcome=outcome,
        error=error if outcome not in (None, "succeeded") else None,
    )
    return attempt.fence


def _end(started_at: datetime, outcome: str | None) -> datetime | None:
    return started_at + timedelta(seconds=1) if outcome else None


def _next_fence() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('fence_seq')")
        return int(cursor.fetchone()[0])
