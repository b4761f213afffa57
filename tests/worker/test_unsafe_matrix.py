"""An effect that must not happen twice: every end that is no answer, met by the sweep in either order."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest
from prometheus_client import REGISTRY

from scheduler.clock import database_now
from scheduler.core.states import Refusal
from scheduler.errors import NotStarted, PermanentError
from scheduler.processes.relay import Relay
from scheduler.processes.sweep import Sweep
from scheduler.worker.execution import Context
from scheduler.worker.runtime import Worker
from tests.processes.test_rounds import Notebook, ownership
from tests.support.ledger import HandMadeLedger
from tests.support.wait import wait_until
from tests.worker.test_runtime import job, worker

__all__ = ["worker"]

Connection = psycopg.Connection[Any]
End = Callable[[Context, Worker], Any]


def times_out(ctx: Context, worker: Worker) -> None:
    worker.held()[0].ends_at = 0
    ctx.check_cancelled()


def is_cancelled(ctx: Context, worker: Worker) -> None:
    worker.held()[0].cancelled.set()
    ctx.check_cancelled()


def raising(error: BaseException) -> End:
    def end(ctx: Context, worker: Worker) -> None:
        raise error

    return end


NO_ANSWER: dict[str, End] = {
    "read timeout": raising(TimeoutError("no answer within 30 s")),
    "connection reset": raising(ConnectionResetError()),
    "any exception": raising(ValueError("in the lines after the effect")),
    "exit": raising(SystemExit(1)),
    "time limit": times_out,
    "cancellation": is_cancelled,
}
ANSWERS: dict[str, tuple[End, str]] = {
    "success": (lambda ctx, worker: "paid", "SUCCEEDED"),
    "permanent error": (raising(PermanentError("refused")), "FAILED"),
    "not started": (raising(NotStarted("closed")), "FAILED"),
}


class Play:
    """One run of an unsafe target, whose job leaves an effect and ends; and a sweep that takes it away."""

    def __init__(self, ledger: HandMadeLedger, connection: Connection, worker: Worker) -> None:
        self.ledger = ledger
        self.connection = connection
        self.worker = worker
        self.effects = 0
        self.unknown_before = unknowns()
        connection.execute("UPDATE target SET side_effects = 'unsafe_external'")

    def perform(self, end: End, *, swept: str, by: str) -> None:
        def work(ctx: Context) -> Any:
            self.effects += 1
            if swept == "before its end":
                self.take_away(by)
            return end(ctx, self.worker)

        answers: list[UUID | Refusal] = []
        run_id = self.ledger.run(self.ledger.instant(1), "QUEUED")
        self.worker.claim(run_id, self.ledger.instant(1), answers.append)
        wait_until(lambda: len(answers) == 1)
        assert isinstance(answers[0], UUID)
        self.worker.execute(answers[0], job(work, drains=False))
        wait_until(lambda: not self.worker.held())
        self.take_away(by)

    def take_away(self, by: str) -> None:
        if by == "time":
            self.connection.execute("UPDATE lease SET ends_by = clock_timestamp()")
        else:
            self.connection.execute("UPDATE lease SET session_id = gen_random_uuid()")
        sweep = Sweep(session_s=3600, dispatch_grace_s=0, rate_per_s=200, breaker_at=0.85)
        sweep.run_once(self.connection, database_now(self.connection))

    def outcome(self) -> str:
        """The state, after every chance to try it again: there is one effect, one attempt, none to come."""
        broker = Notebook()
        relay = Relay(ownership("relay", ignore=True), broker)
        relay.run_once(self.connection, database_now(self.connection))
        assert broker.given == []
        assert self.connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
        assert self.connection.execute("SELECT count(*) FROM attempt").fetchone() == (1,)
        assert self.effects == 1
        (state,) = self.connection.execute("SELECT state FROM occurrence").fetchone() or ("",)
        return str(state)

    def alerts(self) -> float:
        return unknowns() - self.unknown_before


def unknowns() -> float:
    return REGISTRY.get_sample_value("fencepost_alerts_total", {"event": "outcome_unknown"}) or 0.0


@pytest.fixture
def play(ledger: HandMadeLedger, connection: Connection, worker: Worker) -> Play:
    return Play(ledger, connection, worker)


@pytest.mark.parametrize("by", ["time", "a lost session"])
@pytest.mark.parametrize("swept", ["before its end", "after its end"])
@pytest.mark.parametrize("end", NO_ANSWER.values(), ids=NO_ANSWER.keys())
def test_an_end_that_is_no_answer_leaves_it_unknown_with_an_alert(
    end: End, swept: str, by: str, play: Play
) -> None:
    play.perform(end, swept=swept, by=by)
    assert (play.outcome(), play.alerts()) == ("UNKNOWN", 1)


@pytest.mark.parametrize("by", ["time", "a lost session"])
@pytest.mark.parametrize("swept", ["before its end", "after its end"])
@pytest.mark.parametrize(("end", "state"), ANSWERS.values(), ids=ANSWERS.keys())
def test_an_answer_is_taken_under_the_last_fence_though_the_sweep_came_first(
    end: End, state: str, swept: str, by: str, play: Play
) -> None:
    play.perform(end, swept=swept, by=by)
    assert (play.outcome(), play.alerts()) == (state, 1 if swept == "before its end" else 0)
