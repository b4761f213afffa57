"""Sweep: finds by the database's clock what was lost on the way, and puts it back on the agenda."""

import time
from collections.abc import Sequence
from datetime import datetime

from scheduler import telemetry
from scheduler.core import breaker
from scheduler.core.retry import RetryPolicy, after_failure
from scheduler.core.states import AttemptOutcome
from scheduler.faultpoints import fault_point
from scheduler.processes.loop import Report
from scheduler.store import claims, failures, rest, sessions, sweep
from scheduler.store.claims import Ended, Ending, Guard
from scheduler.store.statements import Connection, transaction
from scheduler.store.sweep import Orphan

HOUSEKEEPING_S = 600.0
WAKER_GRACE_S = 60.0
LOSSES_WITHIN_S = 60.0
DEAD_WITHIN_S = 120.0


class Sweep:
    name = "sweep"

    def __init__(
        self, *, session_s: float, dispatch_grace_s: float, rate_per_s: float, breaker_at: float
    ) -> None:
        self._session_s = session_s
        self._dispatch_grace_s = dispatch_grace_s
        self._rate_per_s = rate_per_s
        self._threshold = breaker_at
        self._broken = False
        self._wait_s = min(1.0, session_s / 5)
        self._housekeeping_at = 0.0

    def run_once(self, connection: Connection, now: datetime) -> Report:
        counts = {"lost": 0, "timed_out": 0}
        after_gap = self._after_gap(connection)
        if not after_gap:
            counts["lost"] = self._put_back(connection)
        # While the database was away nobody could report either.
        overdue = sweep.overdue_leases(connection, silent=not after_gap, limit=self._limit)
        counts["timed_out"] = self._end(connection, overdue, "overdue")
        counts["redispatched"] = sweep.redispatch_unclaimed(
            connection, grace_s=self._dispatch_grace_s, limit=self._limit
        )
        counts["rearmed"] = self._rearm(connection)
        counts["paused"] = self._pause_failing(connection)
        with transaction(connection):
            counts["woken"] = rest.wake(connection)
        self._keep_house(connection)
        return Report(counts=counts, wait_s=self._wait_s)

    def retire(self, connection: Connection) -> None:
        """Nothing is held."""

    def disconnected(self) -> None:
        """The gap shows at the next look, whoever takes it."""

    @property
    def _limit(self) -> int:
        """Of a round: at most `rate_per_s`, whatever the rounds' rhythm."""
        return max(1, round(self._rate_per_s * self._wait_s))

    def _after_gap(self, connection: Connection) -> bool:
        """After a gap in the rounds of all sweeps (the database was away) workers could not renew either:
        they get a session's length before anything of theirs is ended.
        """
        look = sweep.look(connection, gap_s=self._session_s / 3 + self._wait_s, hold_s=self._session_s)
        if look.begins:
            telemetry.trouble("sweep_gap", holds_s=self._session_s)
        return look.held

    def _put_back(self, connection: Connection) -> int:
        """Limited for all sweeps together, and to a trickle while the workers that are left are strained."""
        orphans = sweep.dead_leases(connection, limit=self._limit)
        if not orphans:
            self._show(None)
            return 0
        if not sweep.take_turn(connection, wait_s=self._wait_s):
            return 0
        strain = sweep.strain(connection, window_s=LOSSES_WITHIN_S)
        decision = breaker.decide(strain, limit=self._limit, threshold=self._threshold)
        self._show(decision.reason)
        return self._end(connection, orphans[: decision.limit], "dead")

    def _show(self, reason: str | None) -> None:
        """An alert when the breaker opens, not at each round in which it is open."""
        broken = reason is not None
        telemetry.BREAKER_OPEN.set(broken)
        if broken and not self._broken:
            telemetry.alert("breaker_open", reason=reason)
        elif self._broken and not broken:
            telemetry.fact("breaker_closed")
        self._broken = broken

    def _end(self, connection: Connection, orphans: Sequence[Orphan], guard: Guard) -> int:
        if not orphans:
            return 0
        fault_point("sweep.after_select")
        endings = [_ending(orphan, guard) for orphan in orphans]
        together = [ending for ending in endings if not ending.may_pause]
        ended: dict[int, Ended] = {}
        for batch in [together, *([ending] for ending in endings if ending.may_pause)]:
            ended |= self._end_together(connection, batch, guard) if batch else {}
        for run in ended.values():
            telemetry.LEASES_EXPIRED.inc()
            telemetry.trouble(
                "attempt_" + _OUTCOMES[guard], run=str(run.run_id), fence=run.fence, now=run.state
            )
        return len(ended)

    def _end_together(
        self, connection: Connection, endings: Sequence[Ending], guard: Guard
    ) -> dict[int, Ended]:
        with transaction(connection):
            claims.lock(connection, endings=endings)
            ended = claims.end_attempts(connection, endings, guard=guard)
            fault_point("sweep.after_update")
            fault_point("sweep.before_commit")
        fault_point("sweep.after_commit")
        return ended

    def _pause_failing(self, connection: Connection) -> int:
        """A claim that ends a run, because its deadline has passed, has not locked the schedule before."""
        paused = 0
        for schedule_id in failures.lately_dead(connection, within_s=DEAD_WITHIN_S, limit=self._limit):
            with transaction(connection):
                failures.lock_schedules(connection, [schedule_id])
                paused += failures.pause_if_failing(connection, schedule_id)
        return paused

    def _rearm(self, connection: Connection) -> int:
        found = sweep.rearm_without_waker(connection, after_s=WAKER_GRACE_S, limit=self._limit)
        for run_id in found:
            telemetry.alert("run_without_waker", run=str(run_id))
        return len(found)

    def _keep_house(self, connection: Connection) -> None:
        if time.monotonic() >= self._housekeeping_at:
            self._housekeeping_at = time.monotonic() + HOUSEKEEPING_S
            sweep.make_partitions(connection)
            sessions.forget_sessions(connection)


_OUTCOMES: dict[Guard, AttemptOutcome] = {"dead": AttemptOutcome.LOST, "overdue": AttemptOutcome.TIMED_OUT}
_TEXTS: dict[Guard, str] = {
    "dead": "The worker's session ended while it held this run.",
    "overdue": "The attempt ran past timeout_s and cancel_grace_s.",
}
_SILENT = "The job had not reported for longer than heartbeat_timeout_s."


def _ending(orphan: Orphan, guard: Guard) -> Ending:
    decision = after_failure(
        RetryPolicy.of(orphan.retry),
        run_id=orphan.run_id,
        attempt=orphan.tries,
        side_effects=orphan.side_effects,
    )
    return Ending(
        run_id=orphan.run_id,
        due_at=orphan.due_at,
        fence=orphan.fence,
        schedule_id=orphan.schedule_id,
        slotted=orphan.slotted,
        fixed_delay=orphan.fixed_delay,
        state=decision.state,
        delay_s=decision.delay_s,
        deadline_at=orphan.deadline_at,
        pause_after=orphan.pause_after,
        outcome=_OUTCOMES[guard],
        error={"type": _OUTCOMES[guard].value, "message": _SILENT if orphan.is_silent else _TEXTS[guard]},
    )
