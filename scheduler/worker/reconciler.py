"""Asks the hooks of unsafe jobs how runs of unknown outcome ended.

The look is claimed in the ledger, so that of several workers one asks. A hook is bounded in time and may
fail: then it is asked again, less and less often. What it says goes through the same guarded transition as a
person's word: a late completion, a person and a hook settle a run once.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias
from uuid import UUID

from django.db import connections

from scheduler import telemetry
from scheduler.core.identity import idempotency_key, sub_key
from scheduler.core.states import State
from scheduler.store import unknown
from scheduler.store.statements import DATABASE_AWAY, Connection, transaction
from scheduler.store.unknown import Look
from scheduler.worker.registry import JobSpec

ANSWERS: Final = {"succeeded": State.SUCCEEDED, "failed": State.FAILED, "retry": State.PENDING}
LONGEST_S = 3600.0
MOST_OVERTIME = 4  # hooks that do not come back; beyond that nobody is asked here


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownRun:
    """What a hook gets: the run, and its last attempt by number, fence and error (type, message, traceback;
    None: its worker was lost).
    """

    run_id: UUID
    due_at: datetime
    tenant: str
    payload: dict[str, Any]
    payload_ref: str | None
    idempotency_key: str
    attempt: int
    fence: int
    error: dict[str, Any] | None

    def key(self, name: str) -> str:
        """As the context's: the key of one of several effects."""
        return sub_key(self.idempotency_key, name)


Hook: TypeAlias = Callable[[UnknownRun], str | None]


class Reconciler(threading.Thread):
    """One question at a time. `hook_s` bounds it; the next look at the same run is twice as far away."""

    def __init__(
        self,
        connect: Callable[[str], Connection],
        jobs: Callable[[], Mapping[str, JobSpec]],
        *,
        hook_s: float,
    ) -> None:
        super().__init__(name="fencepost-reconciler", daemon=True)
        self._connect = connect
        self._jobs = jobs
        self._hook_s = hook_s
        self._wait_s = min(2.0, hook_s / 10)
        self._connection: Connection | None = None
        self._ending = threading.Event()
        self._overtime: list[threading.Thread] = []

    def finish(self, timeout_s: float) -> None:
        """Whatever is being asked is asked again, by others."""
        self._ending.set()
        if self.is_alive():
            self.join(timeout_s)

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                waits = not self.round()
            except Exception as error:  # nobody would ask any more, and nobody would see that
                telemetry.alert("reconciler_failed", error=f"{type(error).__name__}: {error}"[:500])
                self._drop_connection()
                waits = True
            if waits:
                self._ending.wait(self._wait_s)
        self._drop_connection()

    def round(self) -> bool:
        """Ask about one run; whether there was one."""
        hooks = {name: spec.reconcile for name, spec in self._jobs().items() if spec.reconcile is not None}
        self._overtime = [thread for thread in self._overtime if thread.is_alive()]
        if not hooks or len(self._overtime) >= MOST_OVERTIME:
            return False
        try:
            one = self._look(list(hooks))
            if one is not None:
                self._settle(one, self._ask(hooks[one.target], one))
            return one is not None
        except DATABASE_AWAY as error:
            telemetry.trouble("reconciler_without_database", error=str(error).strip())
            self._drop_connection()
            return False

    def _look(self, targets: list[str]) -> Look | None:
        connection = self._connected()
        with transaction(connection):
            return unknown.look(connection, targets=targets, again_s=2 * self._hook_s, longest_s=LONGEST_S)

    def _ask(self, hook: Hook, one: Look) -> str | None:
        """In a thread of its own, which is left behind when it does not come back in time."""
        answers: list[str | None] = []
        thread = threading.Thread(target=_call, args=(hook, one, answers), name="fencepost-hook", daemon=True)
        thread.start()
        thread.join(self._hook_s)
        if thread.is_alive():
            self._overtime.append(thread)
            telemetry.trouble("reconcile_hook_overtime", run=str(one.run_id), target=one.target)
            return None
        return answers[0] if answers else None

    def _settle(self, one: Look, answer: str | None) -> None:
        if answer is None:
            return
        if not isinstance(answer, str) or answer not in ANSWERS:
            detail = f"{answer!r} is none of {', '.join(ANSWERS)}, None"[:200]
            telemetry.alert("reconcile_hook_failed", run=str(one.run_id), target=one.target, error=detail)
            return
        connection = self._connected()
        with transaction(connection):
            told = unknown.tell(connection, one, ANSWERS[answer], actor=f"reconcile hook of {one.target}")
        telemetry.fact("reconciled_by_hook" if told else "hook_came_late", run=str(one.run_id), answer=answer)

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect("worker reconciler")
        return self._connection

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _call(hook: Hook, one: Look, answers: list[str | None]) -> None:
    info = UnknownRun(
        run_id=one.run_id,
        due_at=one.due_at,
        tenant=one.tenant,
        payload=one.payload,
        payload_ref=one.payload_ref,
        idempotency_key=idempotency_key(one.due_at, one.schedule_id, one.revision, one.origin_key),
        attempt=one.attempt,
        fence=one.fence,
        error=one.error,
    )
    try:
        answers.append(hook(info))
    except BaseException as error:  # it is the user's code, and asked again
        detail = f"{type(error).__name__}: {_text_of(error)}"[:200]
        telemetry.alert("reconcile_hook_failed", run=str(one.run_id), target=one.target, error=detail)
    finally:
        connections.close_all()  # those of this thread: Django would leave them open


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "its text cannot be read"
