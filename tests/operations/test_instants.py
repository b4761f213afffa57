"""Edits, pauses and deletions neither lose nor repeat an instant. The tick is played by its statements."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection

from scheduler.core import identity
from scheduler.core.materialise import plan_move
from scheduler.core.overlap import Slot
from scheduler.core.release import decide
from scheduler.errors import Conflict, NotFound, ValidationFailed
from scheduler.models import Occurrence, PauseInterval, Schedule, ScheduleRevision
from scheduler.operations import (
    cancel_run,
    delete_schedule,
    dismiss_run,
    edit_schedule,
    pause_schedule,
    redrive_run,
    resume_schedule,
    trigger_schedule,
)
from scheduler.orm import database_time, raw_connection
from scheduler.store import due, outbox
from tenants.models import AuditEntry, Tenant
from tests import factories
from tests.factories import ACTOR, every

pytestmark = pytest.mark.django_db

SINCE_LONG_AGO = every(1, anchor="2026-01-01T00:00:00Z")


@pytest.fixture
def tenant() -> Tenant:
    return factories.TenantFactory()


def tick(schedule: Schedule, *, look_ahead_s: float = 10) -> None:
    """What a tick does to one schedule, with the product's own plan and statement."""
    raw, now = raw_connection(), database_time()
    position = due.due_schedule(raw, schedule.id)
    assert position is not None
    move = plan_move(
        position,
        now=now,
        look_ahead_s=look_ahead_s,
        limit=1000,
        new_id=lambda due_at: identity.run_id(due_at, os.urandom(10)),
    )
    due.materialise(raw, [move], now=now)


def overdue_by(schedule: Schedule, seconds: int) -> datetime:
    """As if no tick had come for a while: the next instant lies that far back."""
    first = database_time().replace(microsecond=0) - timedelta(seconds=seconds)
    Schedule.objects.filter(id=schedule.id).update(next_due_at=first)
    return first


def instants(schedule: Schedule) -> list[datetime]:
    rows = Occurrence.objects.filter(schedule=schedule, origin="schedule")
    return list(rows.order_by("due_at").values_list("due_at", flat=True))


def agenda() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM outbox")
        found: int = cursor.fetchone()[0]
    return found


def queue(run: Occurrence) -> None:
    Occurrence.objects.filter(id=run.id).update(
        state="QUEUED", wait_reason=None, queued_at=database_time(), generation=1
    )


def start(run: Occurrence) -> None:
    queue(run)
    Occurrence.objects.filter(id=run.id).update(state="RUNNING", fence=1, attempt_count=1)


def edit(schedule: Schedule, changes: Mapping[str, Any]) -> Schedule:
    return edit_schedule(schedule.tenant, schedule.id, changes, expected_revision=None, actor=ACTOR)


class TestCreate:
    def test_aims_at_the_first_instant_after_now(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant, trigger=every(60))
        assert schedule.next_due_at is not None
        assert schedule.next_due_at - schedule.created_at <= timedelta(seconds=60)
        assert schedule.next_due_at > schedule.created_at
        assert schedule.shard == identity.shard_of(schedule.id)

    def test_respects_the_start(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant, start_at="2031-05-05T05:00:00Z")
        assert schedule.next_due_at == datetime(2031, 5, 5, 7, tzinfo=UTC)

    @pytest.mark.parametrize(("overlap", "slots"), [("skip", 1), ("allow", 0)])
    def test_has_a_slot_unless_runs_may_overlap(self, tenant: Tenant, overlap: str, slots: int) -> None:
        factories.schedule(tenant, overlap=overlap)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM overlap_slot")
            assert cursor.fetchone() == (slots,)

    def test_an_instant_is_a_whole_millisecond(self, tenant: Tenant) -> None:
        at = (database_time() + timedelta(seconds=5)).replace(microsecond=123456)
        schedule = factories.schedule(tenant, trigger={"once": {"at": at.isoformat()}})
        assert schedule.next_due_at == at.replace(microsecond=123000)
        tick(schedule)
        assert instants(schedule) == [schedule.next_due_at]


class TestEdit:
    def test_of_the_payload_moves_and_repeats_nothing(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant, trigger=every(2))
        tick(schedule)
        ahead = instants(schedule)
        assert len(ahead) >= 4
        edited = edit(schedule, {"payload": {"kind": "x"}})
        assert instants(schedule) == []
        assert agenda() == 0
        assert edited.next_due_at == ahead[0]
        tick(schedule)
        assert instants(schedule)[: len(ahead)] == ahead
        assert set(Occurrence.objects.values_list("revision", flat=True)) == {2}

    def test_settles_what_the_tick_has_not_met(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant, trigger=SINCE_LONG_AGO, overlap="allow", catch_up_after_s=3600)
        first = overdue_by(schedule, 5)
        edit(schedule, {"trigger": every(3600)})
        settled = instants(schedule)
        assert len(settled) >= 6  # more where the machine took a second over it
        assert settled == [first + timedelta(seconds=number) for number in range(len(settled))]
        assert set(Occurrence.objects.values_list("revision", flat=True)) == {1}
        assert agenda() == len(settled)

    def test_keeps_what_a_release_has_queued_and_goes_on_behind_it(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant, trigger=every(2))
        tick(schedule)
        queued = Occurrence.objects.order_by("due_at")[0]
        queue(queued)
        edited = edit(schedule, {"payload": {"kind": "x"}})
        assert instants(schedule) == [queued.due_at]
        assert edited.next_due_at == queued.due_at + timedelta(seconds=2)
        assert edited.last_due_at == queued.due_at
        revision = ScheduleRevision.objects.get(number=2)
        assert revision.effective_from == queued.due_at
        assert ScheduleRevision.objects.get(number=1).ended_at == queued.due_at

    def test_does_not_make_a_cancelled_instant_again(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant, trigger=every(5))
        tick(schedule)
        first = Occurrence.objects.order_by("due_at")[0]
        cancel_run(tenant, first.id, actor=ACTOR)
        edit(schedule, {"description": "x"})
        tick(schedule)
        again = Occurrence.objects.order_by("due_at")[0]
        assert (again.id, again.state, again.revision) == (first.id, "CANCELLED", 2)
        assert instants(schedule)[1] == first.due_at + timedelta(seconds=5)

    @pytest.mark.parametrize("after", ["edit", "pause"])
    def test_of_a_schedule_with_a_run_called_off_ahead_loses_none_before_it(
        self, tenant: Tenant, after: str
    ) -> None:
        schedule = factories.schedule(tenant, trigger=every(1), overlap="allow")
        tick(schedule, look_ahead_s=60)
        called_off = Occurrence.objects.order_by("due_at")[50]
        cancel_run(tenant, called_off.id, actor=ACTOR)
        began = database_time()
        if after == "edit":
            edit(schedule, {"payload": {"kind": "x"}})
        else:
            pause_schedule(tenant, schedule.id, actor=ACTOR)
            resume_schedule(tenant, schedule.id, actor=ACTOR)
        tick(schedule, look_ahead_s=60)
        met = [instant for instant in instants(schedule) if began < instant <= called_off.due_at]
        assert met[0] - began < timedelta(seconds=5)
        assert all(later - earlier == timedelta(seconds=1) for earlier, later in pairwise(met))
        assert Occurrence.objects.get(due_at=called_off.due_at).state == "CANCELLED"

    def test_during_the_look_ahead_of_a_single_moment_keeps_that_moment(self, tenant: Tenant) -> None:
        at = database_time().replace(microsecond=0) + timedelta(seconds=6)
        schedule = factories.schedule(tenant, trigger={"once": {"at": at.isoformat()}})
        tick(schedule)
        schedule.refresh_from_db()
        assert schedule.state == "completed"
        edited = edit(schedule, {"payload": {"kind": "x"}})
        assert (edited.state, edited.next_due_at) == ("active", at)

    def test_of_a_paused_schedule_leaves_it_paused(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant)
        pause_schedule(tenant, schedule.id, actor=ACTOR)
        edited = edit(schedule, {"trigger": every(60)})
        assert (edited.state, edited.next_due_at, edited.revision) == ("paused", None, 2)

    def test_repairs_a_schedule_that_was_set_aside(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant)
        due.fault_schedule(raw_connection(), schedule.id, revision=1, fault="broken", now=database_time())
        edited = edit(schedule, {"trigger": every(60)})
        assert (edited.state, edited.fault) == ("active", "")

    def test_may_end_a_schedule(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant)
        edited = edit(schedule, {"end_at": "2020-01-01T00:00:00Z"})
        assert (edited.state, edited.next_due_at) == ("completed", None)

    def test_to_a_policy_with_a_slot_makes_the_slot(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant, overlap="allow")
        edit(schedule, {"overlap": "skip"})
        with connection.cursor() as cursor:
            cursor.execute("SELECT schedule_id FROM overlap_slot")
            assert cursor.fetchone() == (schedule.id,)

    def test_what_was_dispatched_keeps_its_revision(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant, trigger=every(1))
        run_id = trigger_schedule(tenant, schedule.id, request_key=uuid4(), actor=ACTOR)
        edit(schedule, {"payload": {"kind": "x"}})
        assert Occurrence.objects.get(id=run_id).revision == 1

    def test_of_a_cancelled_schedule_is_a_conflict(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant)
        delete_schedule(tenant, schedule.id, actor=ACTOR)
        with pytest.raises(Conflict):
            edit(schedule, {"description": "x"})


class TestPause:
    def test_withdraws_what_lies_ahead_and_can_be_taken_back_at_once(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant, trigger=every(2))
        tick(schedule)
        ahead = instants(schedule)
        pause_schedule(tenant, schedule.id, note="why", actor=ACTOR)
        assert (instants(schedule), agenda()) == ([], 0)
        assert due.due_schedule(raw_connection(), schedule.id) is None
        resume_schedule(tenant, schedule.id, actor=ACTOR)
        tick(schedule)
        assert instants(schedule)[: len(ahead)] == ahead

    def test_is_kept_with_who_and_why(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant)
        pause_schedule(tenant, schedule.id, note="why", actor=ACTOR)
        interval = PauseInterval.objects.get()
        assert (interval.paused_by, interval.note, interval.ended_at) == ("test", "why", None)
        resume_schedule(tenant, schedule.id, actor=ACTOR)
        interval.refresh_from_db()
        assert interval.resumed_from is not None
        assert interval.began_at < interval.resumed_from == interval.ended_at

    def test_makes_what_was_due_before_it(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant, trigger=SINCE_LONG_AGO)
        first = overdue_by(schedule, 3)
        pause_schedule(tenant, schedule.id, actor=ACTOR)
        assert instants(schedule) == [first + timedelta(seconds=number) for number in range(4)]

    def test_resume_goes_on_from_now(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant, trigger=every(1))
        pause_schedule(tenant, schedule.id, actor=ACTOR)
        resumed = resume_schedule(tenant, schedule.id, actor=ACTOR)
        assert resumed.revision == 1
        assert resumed.next_due_at is not None
        assert resumed.next_due_at > PauseInterval.objects.get().resumed_from

    def test_of_the_last_moment_within_its_look_ahead(self, tenant: Tenant) -> None:
        at = database_time().replace(microsecond=0) + timedelta(seconds=6)
        schedule = factories.schedule(tenant, trigger={"once": {"at": at.isoformat()}})
        tick(schedule)
        assert pause_schedule(tenant, schedule.id, actor=ACTOR).state == "paused"
        assert instants(schedule) == []
        assert resume_schedule(tenant, schedule.id, actor=ACTOR).next_due_at == at

    def test_of_what_is_completed_is_a_conflict(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant)
        edit(schedule, {"end_at": "2020-01-01T00:00:00Z"})
        with pytest.raises(Conflict) as caught:
            pause_schedule(tenant, schedule.id, actor=ACTOR)
        assert caught.value.state == "completed"

    def test_resume_by_an_unknown_policy_is_refused(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant)
        with pytest.raises(ValidationFailed):
            resume_schedule(tenant, schedule.id, resume="catchup", actor=ACTOR)


class TestDelete:
    def test_cancels_what_waits_and_asks_what_runs_to_stop(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant, trigger=every(2))
        tick(schedule)
        for prepare in (queue, start):
            run_id = trigger_schedule(tenant, schedule.id, request_key=uuid4(), actor=ACTOR)
            prepare(Occurrence.objects.get(id=run_id))
        trigger_schedule(tenant, schedule.id, request_key=uuid4(), actor=ACTOR)
        delete_schedule(tenant, schedule.id, actor=ACTOR)
        states = Occurrence.objects.order_by("due_at", "created_at").values_list("state", flat=True)
        assert sorted(states) == ["CANCELLED", "CANCELLED", "RUNNING"]
        assert Occurrence.objects.get(state="RUNNING").cancel_requested_at is not None
        schedule.refresh_from_db()
        assert (schedule.state, schedule.next_due_at) == ("cancelled", None)
        assert ScheduleRevision.objects.get().ended_at is not None

    def test_frees_the_slot(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant)
        run_id = trigger_schedule(tenant, schedule.id, request_key=uuid4(), actor=ACTOR)
        queue(Occurrence.objects.get(id=run_id))
        _occupy(schedule, run_id)
        delete_schedule(tenant, schedule.id, actor=ACTOR)
        assert _holder(schedule) is None


def _occupy(schedule: Schedule, run_id: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE overlap_slot SET run_id = %s, due_at = now() WHERE schedule_id = %s",
            [run_id, schedule.id],
        )


def _holder(schedule: Schedule) -> Any:
    with connection.cursor() as cursor:
        cursor.execute("SELECT run_id FROM overlap_slot WHERE schedule_id = %s", [schedule.id])
        return cursor.fetchone()[0]


class TestTrigger:
    def test_makes_a_run_that_is_due_now(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant)
        key = uuid4()
        run_id = trigger_schedule(tenant, schedule.id, request_key=key, actor=ACTOR)
        run = Occurrence.objects.get(id=run_id)
        assert identity.due_at_of(run_id) == run.due_at <= database_time()
        assert (run.origin, run.origin_key, run.slotted) == ("trigger", key, True)
        assert agenda() == 1

    def test_the_same_request_is_one_run(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant)
        key = uuid4()
        ids = {trigger_schedule(tenant, schedule.id, request_key=key, actor=ACTOR) for _ in range(3)}
        assert len(ids) == Occurrence.objects.count() == 1

    @pytest.mark.parametrize(
        ("own", "asked", "slotted"),
        [("skip", "allow", False), ("allow", "skip", True), ("allow", None, False)],
    )
    def test_overlap_may_be_overridden(
        self, tenant: Tenant, own: str, asked: str | None, slotted: bool
    ) -> None:
        schedule = factories.schedule(tenant, overlap=own)
        run_id = trigger_schedule(tenant, schedule.id, overlap=asked, request_key=uuid4(), actor=ACTOR)
        assert Occurrence.objects.get(id=run_id).slotted is slotted


class TestCancelRun:
    @pytest.mark.parametrize("prepare", [lambda run: None, queue])
    def test_what_waits_is_cancelled(self, tenant: Tenant, prepare: Any) -> None:
        schedule = factories.schedule(tenant)
        run_id = trigger_schedule(tenant, schedule.id, request_key=uuid4(), actor=ACTOR)
        prepare(Occurrence.objects.get(id=run_id))
        _occupy(schedule, run_id)
        run = cancel_run(tenant, run_id, actor=ACTOR)
        assert (run.state, run.wait_reason) == ("CANCELLED", None)
        assert run.finished_at is not None
        assert (agenda(), _holder(schedule)) == (0, None)

    def test_leaves_the_slot_to_another_run(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant)
        run_id = trigger_schedule(tenant, schedule.id, request_key=uuid4(), actor=ACTOR)
        other = uuid4()
        _occupy(schedule, other)
        cancel_run(tenant, run_id, actor=ACTOR)
        assert _holder(schedule) == other

    def test_what_runs_is_asked_to_stop(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant)
        run_id = trigger_schedule(tenant, schedule.id, request_key=uuid4(), actor=ACTOR)
        start(Occurrence.objects.get(id=run_id))
        first = cancel_run(tenant, run_id, actor=ACTOR)
        again = cancel_run(tenant, run_id, actor=ACTOR)
        assert first.state == "RUNNING"
        assert first.cancel_requested_at == again.cancel_requested_at is not None

    def test_what_is_over_is_a_conflict(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant)
        run_id = trigger_schedule(tenant, schedule.id, request_key=uuid4(), actor=ACTOR)
        cancel_run(tenant, run_id, actor=ACTOR)
        with pytest.raises(Conflict) as caught:
            cancel_run(tenant, run_id, actor=ACTOR)
        assert caught.value.state == "CANCELLED"

    def test_no_id_is_too_odd_to_be_not_found(self, tenant: Tenant) -> None:
        for run_id in (uuid4(), type(uuid4())(int=2**128 - 1), type(uuid4())(int=0)):
            with pytest.raises(NotFound):
                cancel_run(tenant, run_id, actor=ACTOR)


def fail(run: Occurrence, state: str = "DEAD_LETTERED") -> None:
    """As its last allowed attempt leaves a run."""
    start(run)
    rows = Occurrence.objects.filter(due_at=run.due_at, id=run.id)
    rows.update(state=state, finished_at=database_time(), attempt_count=5, error={"type": "ValueError"})
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM outbox")


class TestRedriveAndDismiss:
    @pytest.fixture
    def run(self, tenant: Tenant) -> Occurrence:
        schedule = factories.schedule(tenant)
        run_id = trigger_schedule(tenant, schedule.id, request_key=uuid4(), actor=ACTOR)
        return Occurrence.objects.get(id=run_id)

    @pytest.mark.parametrize("state", ["FAILED", "DEAD_LETTERED"])
    def test_what_failed_waits_again_with_a_fresh_budget(
        self, tenant: Tenant, run: Occurrence, state: str
    ) -> None:
        fail(run, state)
        again = redrive_run(tenant, run.id, actor=ACTOR)
        assert (again.id, again.state, again.wait_reason) == (run.id, "PENDING", "due")
        assert (again.attempt_count, again.tries, again.finished_at, again.error) == (5, 0, None, None)
        assert agenda() == 1
        entry = AuditEntry.objects.get(action="run.redrive")
        assert entry.before == {"state": state, "attempts": 5}

    def test_a_redriven_instant_of_long_ago_is_not_taken_for_missed(self, tenant: Tenant) -> None:
        schedule = factories.schedule(tenant, trigger=SINCE_LONG_AGO)
        overdue_by(schedule, 1)
        tick(schedule, look_ahead_s=0)
        run = Occurrence.objects.order_by("due_at")[0]
        fail(run)
        raw = raw_connection()
        raw.execute("UPDATE schedule_revision SET catch_up_after_s = 0, catch_up = 'skip'")
        redrive_run(tenant, run.id, actor=ACTOR)
        rows = [row for row in outbox.due_rows(raw, shards=range(256), limit=9) if row.run_id == run.id]
        batch = decide(outbox.lock_candidates(raw, rows), slots={schedule.id: Slot()}, now=database_time())
        assert [decision.verdict for decision in batch.decisions] == ["queue"]

    @pytest.mark.parametrize("verb", [redrive_run, dismiss_run])
    def test_what_did_not_fail_is_a_conflict(self, tenant: Tenant, run: Occurrence, verb: Any) -> None:
        with pytest.raises(Conflict) as caught:
            verb(tenant, run.id, actor=ACTOR)
        assert caught.value.state == "PENDING"

    def test_nothing_of_a_cancelled_schedule_is_redriven(self, tenant: Tenant, run: Occurrence) -> None:
        fail(run)
        delete_schedule(tenant, run.schedule_id, actor=ACTOR)
        with pytest.raises(Conflict, match="cancelled"):
            redrive_run(tenant, run.id, actor=ACTOR)

    def test_dismissing_twice_is_one_entry_and_a_redrive_takes_it_back(
        self, tenant: Tenant, run: Occurrence
    ) -> None:
        fail(run)
        first, again = (dismiss_run(tenant, run.id, actor=ACTOR) for _ in range(2))
        assert first.state == "DEAD_LETTERED"
        assert first.dismissed_at == again.dismissed_at is not None
        assert AuditEntry.objects.filter(action="run.dismiss").count() == 1
        assert redrive_run(tenant, run.id, actor=ACTOR).dismissed_at is None

    @pytest.mark.parametrize("verb", [redrive_run, dismiss_run])
    def test_another_tenants_run_is_not_found(self, run: Occurrence, verb: Any) -> None:
        fail(run)
        with pytest.raises(NotFound):
            verb(factories.TenantFactory(), run.id, actor=ACTOR)
