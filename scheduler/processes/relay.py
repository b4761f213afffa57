"""Relay: releases what is due, publishes what is released, forgets what the broker has confirmed.

The order is the promise: QUEUED is committed before anything is published, or a worker would find the run
PENDING, refuse it and acknowledge; the agenda row goes only after the broker's confirm.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

from scheduler import telemetry
from scheduler.broker import BROKER_ERRORS, CONFIRM_TIMEOUT_S, Envelope, Publisher
from scheduler.core.overlap import Slot
from scheduler.core.release import Candidate, Decision, Verdict, decide, is_late
from scheduler.faultpoints import fault_point
from scheduler.processes.loop import Report
from scheduler.processes.ownership import Ownership
from scheduler.store import outbox, rest, schedules
from scheduler.store.outbox import AgendaRow
from scheduler.store.schedules import RunKey
from scheduler.store.statements import Connection, transaction
from scheduler.topology import celery_task, queue_name

BATCH = 500
RECHECK_S = 60.0  # a parked run is woken by whoever frees its slot; this is for what nobody foresaw
IDLE_S = 0.15  # a run asked for now, or a retry within the second, is noticed by then
BROKER_AWAY_S = 1.0


class Relay:
    name = "relay"

    def __init__(self, ownership: Ownership, publisher: Publisher) -> None:
        self._ownership = ownership
        self._publisher = publisher
        self._unheard: list[tuple[UUID, int]] = []  # released by a commit whose answer has not come

    def run_once(self, connection: Connection, now: datetime) -> Report:
        owned = self._ownership.hold(connection, now)
        self._look_again(connection)
        until_next_s = outbox.next_dispatch_s(connection, shards=owned)
        if until_next_s is None or until_next_s > 0:
            return Report(wait_s=IDLE_S if until_next_s is None else min(until_next_s, IDLE_S))
        if not self._broker_is_there():
            # Released without a broker, runs would be QUEUED and not late: they wait as what they are.
            return Report(wait_s=BROKER_AWAY_S)
        rows = outbox.due_rows(connection, shards=owned, limit=BATCH)
        envelopes = self._release(connection, rows, now)
        fault_point("release.after_queued")
        published = self._publish(connection, envelopes)
        return Report(
            counts={"rows": len(rows), "released": len(envelopes), "published": published},
            more=len(rows) == BATCH,
            wait_s=0.0 if published else IDLE_S,
        )

    def retire(self, connection: Connection) -> None:
        self._ownership.retire(connection)
        self._publisher.close()

    def disconnected(self) -> None:
        self._ownership.forget()

    def _broker_is_there(self) -> bool:
        try:
            self._publisher.connect()
            return True
        except BROKER_ERRORS as error:
            telemetry.trouble("broker_away", error=f"{type(error).__name__}: {error}")
            self._publisher.close()
            return False

    def _release(self, connection: Connection, rows: Sequence[AgendaRow], now: datetime) -> list[Envelope]:
        with transaction(connection):
            outbox.drop_rows(connection, [row for row in rows if row.schedule_id is None])
            slots, candidates = _lock(connection, [row for row in rows if row.schedule_id is not None], now)
            fault_point("relay.after_lock")
            batch = decide(candidates, slots=slots, now=now)
            standing = outbox.release(
                connection, batch.decisions, republish_s=2 * CONFIRM_TIMEOUT_S, recheck_s=RECHECK_S
            )
            _cancel_holders(connection, batch.holders_to_cancel, now)
            _wake_schedules(connection, batch.decisions)
            self._unheard = [(run.run_id, run.generation) for run in standing]
        self._unheard = []
        for decision in batch.decisions:
            if decision.verdict is Verdict.SKIP:
                telemetry.RUNS.labels("SKIPPED", decision.reason).inc()
        by_run = {decision.candidate.run_id: decision for decision in batch.decisions}
        return [_envelope(by_run[run.run_id], run.generation) for run in standing]

    def _look_again(self, connection: Connection) -> None:
        """The connection was cut in a commit. If the release did happen, its rows stand as if they had been
        published, for as long as a confirm may take: nobody has published them.
        """
        if self._unheard:
            outbox.unconfirmed(connection, self._unheard)
            self._unheard = []

    def _publish(self, connection: Connection, envelopes: Sequence[Envelope]) -> int:
        if not envelopes:
            return 0
        confirmed = self._publisher.publish(envelopes)
        fault_point("relay.after_confirm")
        with transaction(connection):
            outbox.confirmed(connection, _keys(confirmed))
            fault_point("relay.after_delete")
            certain = set(confirmed)
            outbox.unconfirmed(connection, _keys([one for one in envelopes if one not in certain]))
        fault_point("relay.after_commit")
        return len(confirmed)


def _lock(
    connection: Connection, rows: Sequence[AgendaRow], now: datetime
) -> tuple[dict[UUID, Slot], list[Candidate]]:
    """Slots before runs. Runs that the decision may touch belong to it: those that may be displaced, and,
    where a schedule turns out late, all of it that waits.
    """
    slots = outbox.lock_slots(
        connection, {row.schedule_id for row in rows if row.slotted and row.schedule_id is not None}
    )
    known = {row.run_id for row in rows}
    waiting = {run for slot in slots.values() for run in (slot.first_parked, slot.replaceable) if run} - known
    rows = [*rows, *outbox.rows_of_parked(connection, waiting)] if waiting else rows
    candidates = outbox.lock_candidates(connection, rows)
    late = {candidate.schedule_id for candidate in candidates if is_late(candidate, now)}
    if late:
        siblings = outbox.late_siblings(connection, late, now=now)
        candidates += outbox.lock_candidates(connection, [row for row in siblings if row.run_id not in known])
    return slots, candidates


def _cancel_holders(
    connection: Connection, holders: Collection[tuple[datetime, UUID]], now: datetime
) -> None:
    """Their slots are locked. One that waits ends here and wakes its successor; one that runs is told."""
    if holders:
        keys = [RunKey(due_at, run_id) for due_at, run_id in sorted(holders, key=lambda holder: holder[1])]
        for key in keys:
            schedules.lock_run(connection, key)
        schedules.cancel(connection, keys, now=now)


def _wake_schedules(connection: Connection, decisions: Sequence[Decision]) -> None:
    """A run that is skipped has ended: its schedule may have rested for that."""
    skipped = {decision.candidate.schedule_id for decision in decisions if decision.verdict is Verdict.SKIP}
    if skipped:
        rest.wake(connection, skipped)


def _envelope(decision: Decision, generation: int) -> Envelope:
    candidate = decision.candidate
    return Envelope(
        run_id=candidate.run_id,
        due_at=candidate.due_at,
        generation=generation,
        target=candidate.target,
        task=celery_task(candidate.kind, candidate.target),
        queue=queue_name("overdue" if decision.overdue else candidate.priority),
        endpoint=candidate.endpoint,
    )


def _keys(envelopes: Sequence[Envelope]) -> list[tuple[UUID, int]]:
    return [(envelope.run_id, envelope.generation) for envelope in envelopes]
