"""Tick: makes due instants durable, ahead of their time."""

import os
from datetime import datetime
from uuid import UUID

from scheduler import telemetry
from scheduler.core.identity import run_id
from scheduler.core.materialise import DueSchedule, Move, horizon, plan_move
from scheduler.faultpoints import fault_point
from scheduler.processes.loop import Report
from scheduler.processes.ownership import Ownership
from scheduler.store import due
from scheduler.store.statements import Connection, transaction

POLL_S = 0.5  # a schedule made a moment ago may be due within the look-ahead
RECOUNTED = 1000  # runs that a round may count again under `max_occurrences`, before the count is kept
ROWS_PER_SCHEDULE = 100  # a round's bound for one schedule, so that none starves the others


def new_run_id(due_at: datetime) -> UUID:
    return run_id(due_at, os.urandom(10))


class Tick:
    name = "tick"

    def __init__(self, ownership: Ownership, *, look_ahead_s: float, batch: int) -> None:
        self._ownership = ownership
        self._look_ahead_s = look_ahead_s
        self._batch = batch

    def run_once(self, connection: Connection, now: datetime) -> Report:
        fault_point("tick.before_lease")
        owned = self._ownership.hold(connection, now)
        fault_point("tick.after_lease")
        near = due.due_schedules(
            connection, shards=owned, horizon=horizon(now, self._look_ahead_s), limit=self._batch
        )
        fault_point("tick.after_select")
        moves = [move for schedule in near if (move := self._plan(connection, schedule, now)) is not None]
        inserted = self._apply(connection, moves, now) if moves else 0
        return Report(
            counts={"schedules": len(near), "occurrences": inserted, "faulted": len(near) - len(moves)},
            more=len(near) == self._batch or any(self._unfinished(move, now) for move in moves),
            wait_s=POLL_S,
        )

    def retire(self, connection: Connection) -> None:
        self._ownership.retire(connection)

    def disconnected(self) -> None:
        self._ownership.forget()

    def _plan(self, connection: Connection, schedule: DueSchedule, now: datetime) -> Move | None:
        try:
            return plan_move(
                schedule,
                now=now,
                look_ahead_s=self._look_ahead_s,
                limit=ROWS_PER_SCHEDULE,
                new_id=new_run_id,
            )
        except Exception as error:  # one poison row does not stop the fleet, whatever it raises
            due.fault_schedule(
                connection,
                schedule.id,
                revision=schedule.revision,
                fault=f"{type(error).__name__}: {error}",
                now=now,
            )
            telemetry.alert("schedule_faulted", schedule=str(schedule.id), error=str(error))
            return None

    def _apply(self, connection: Connection, moves: list[Move], now: datetime) -> int:
        with transaction(connection):
            locked = due.lock_schedules(connection, [move.due.id for move in moves])
            counted = [move.due.id for move in moves if move.due.recounted > RECOUNTED]
            if counted:
                due.keep_counts(connection, [one for one in counted if one in locked], now=now)
            done = due.materialise(connection, [move for move in moves if move.due.id in locked], now=now)
            fault_point("tick.after_advance")
        fault_point("tick.after_commit")
        for move in moves:
            if move.collapsed and move.due.id in done.moved:
                telemetry.alert("catch_up_collapsed", schedule=str(move.due.id), instants=move.collapsed)
        return done.inserted

    def _unfinished(self, move: Move, now: datetime) -> bool:
        return move.next_due_at is not None and move.next_due_at <= horizon(now, self._look_ahead_s)
