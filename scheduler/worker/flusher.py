"""Group commit: claims and ends from all threads of a worker go through one thread in set-based statements.

Whoever hands in gets an answer of their own, by claim id or fence: two deliveries of one message in one
flush must not both win because the run was claimed.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

import psycopg

from scheduler import telemetry
from scheduler.core.states import Refusal, State
from scheduler.faultpoints import fault_point
from scheduler.store import accepted, claims
from scheduler.store.accepted import Park
from scheduler.store.claims import Claim, Claimed, Ending
from scheduler.store.statements import DATABASE_AWAY, Connection, transaction

MOST_AT_ONCE = 500
RECONNECT_S = 0.2
NOBODY = UUID(int=0)

ClaimAnswer: TypeAlias = Claimed | Refusal


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimWish:
    claim: Claim
    session_id: UUID
    answer: Callable[[ClaimAnswer], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class EndWish:
    """`answer(True)`: the end is on record under this fence; False: the fence was void, nothing changed."""

    ending: Ending
    answer: Callable[[bool], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ParkWish:
    """Of a run that is not claimed, for its endpoint is busy. `answer` once it has gone back to waiting."""

    park: Park
    answer: Callable[[], None]


Wish: TypeAlias = ClaimWish | EndWish | ParkWish


class Flusher(threading.Thread):
    """Runs until `finish`, and through database outages: what was handed in is kept and tried again."""

    def __init__(self, connect: Callable[[str], Connection]) -> None:
        super().__init__(name="fencepost-flusher", daemon=True)
        self._connect = connect
        self._connection: Connection | None = None
        self._wishes: queue.SimpleQueue[Wish | None] = queue.SimpleQueue()

    def submit(self, wish: Wish) -> None:
        self._wishes.put(wish)

    def finish(self, timeout_s: float) -> None:
        """Write out what is handed in, then end."""
        self._wishes.put(None)
        self.join(timeout_s)

    def run(self) -> None:
        while True:
            batch, last = self._next_batch()
            if batch:
                self._flush(batch)
            if last:
                break
        self._drop_connection()

    def _next_batch(self) -> tuple[list[Wish], bool]:
        """All that waits, up to the bound: while one flush commits, the next one gathers."""
        item = self._wishes.get()
        batch: list[Wish] = []
        while item is not None:
            batch.append(item)
            if len(batch) == MOST_AT_ONCE or self._wishes.empty():
                return batch, False
            item = self._wishes.get()
        return batch, True

    def _flush(self, batch: Sequence[Wish]) -> None:
        ends = [wish for wish in batch if isinstance(wish, EndWish)]
        wishes = [wish for wish in batch if isinstance(wish, ClaimWish)]
        firsts = list({wish.claim.run_id: wish for wish in reversed(wishes)}.values())
        kept = {wish.claim.claim_id for wish in firsts}
        self._park([wish for wish in batch if isinstance(wish, ParkWish)])
        together = [wish for wish in ends if not wish.ending.may_pause]
        if together or firsts:
            self._write(together, firsts)
        for alone in (wish for wish in ends if wish.ending.may_pause):
            self._write([alone], [])
        for twin in wishes:
            if twin.claim.claim_id not in kept:
                twin.answer(Refusal.ALREADY_HELD)

    def _park(self, wishes: Sequence[ParkWish]) -> None:
        """A transaction of its own: it is rare, and the locks of claims and ends need not wait for it.

        What the database will not take stays QUEUED, and the sweep finds it unclaimed.
        """
        parks = [wish.park for wish in wishes]
        while parks:
            try:
                connection = self._connected()
                with transaction(connection):
                    claims.lock(connection, claims=[_place(park) for park in parks])
                    accepted.park(connection, parks)
                break
            except DATABASE_AWAY as error:
                telemetry.trouble("flush_repeated", error=str(error).strip())
                self._recover(error)
            except psycopg.Error as error:
                telemetry.alert("row_set_aside", error=f"{type(error).__name__}: {error}".strip())
                break
        for wish in wishes:
            wish.answer()

    def _write(self, ends: Sequence[EndWish], wishes: Sequence[ClaimWish]) -> None:
        """Until it is written. A row that the database will not take is found by halving and set aside."""
        while True:
            try:
                self._write_once(ends, wishes)
                return
            except DATABASE_AWAY as error:
                telemetry.trouble("flush_repeated", error=str(error).strip())
                self._recover(error)
            except psycopg.Error as error:
                self._bisect(ends, wishes, error)
                return

    def _write_once(self, ends: Sequence[EndWish], wishes: Sequence[ClaimWish]) -> None:
        connection = self._connected()
        endings = [wish.ending for wish in ends]
        asked = [wish.claim for wish in wishes]
        with transaction(connection):
            claims.lock(connection, endings=endings, claims=asked)
            on_record = self._end(connection, endings)
            refusals = self._claim(connection, wishes)
        if ends:
            fault_point("worker.after_complete_commit")
        if any(ending.state is State.RUNNING for ending in endings):
            fault_point("http.after_record")
        if wishes:
            fault_point("worker.after_claim_commit")
        # Read by claim id also after a commit that was heard: there is one way to the answer.
        won = claims.claimed(connection, [claim.claim_id for claim in asked]) if asked else {}
        for end in ends:
            end.answer(end.ending.fence in on_record)
        for wish in wishes:
            claim_id = wish.claim.claim_id
            wish.answer(won.get(claim_id) or refusals.get(claim_id) or Refusal.NOT_FOUND)

    def _end(self, connection: Connection, endings: Sequence[Ending]) -> set[int]:
        """Fences under which the end is on record, also by an earlier try whose answer was lost."""
        if not endings:
            return set()
        handed_over = [ending for ending in endings if ending.state is State.RUNNING]
        on_record = accepted.hand_over(connection, handed_over)
        ended = [ending for ending in endings if ending.state is not State.RUNNING]
        on_record |= set(claims.end_attempts(connection, ended, guard="holder"))
        refused = [ending for ending in endings if ending.fence not in on_record]
        if refused:
            on_record |= accepted.reported(connection, [one for one in refused if one in handed_over])
            on_record |= claims.already_ended(connection, refused)
            late = [ending for ending in refused if ending.fence not in on_record]
            on_record |= set(claims.resolve_unknown(connection, late))
            claims.count_late_writes(connection, [ending for ending in late if ending.fence not in on_record])
        fault_point("worker.after_complete_sql")
        return on_record

    def _claim(self, connection: Connection, wishes: Sequence[ClaimWish]) -> dict[UUID, Refusal | None]:
        refusals: dict[UUID, Refusal | None] = {}
        for session_id in {wish.session_id for wish in wishes}:
            asked = [wish.claim for wish in wishes if wish.session_id == session_id]
            refusals |= claims.claim(connection, asked, session_id=session_id)
        if wishes:
            fault_point("worker.after_claim_sql")
        return refusals

    def _bisect(self, ends: Sequence[EndWish], wishes: Sequence[ClaimWish], error: psycopg.Error) -> None:
        everything: list[ClaimWish | EndWish] = [*ends, *wishes]
        if len(everything) == 1:
            self._set_aside(everything[0], error)
            return
        middle = len(everything) // 2
        self._flush(everything[:middle])
        self._flush(everything[middle:])

    def _set_aside(self, wish: ClaimWish | EndWish, error: psycopg.Error) -> None:
        telemetry.alert("row_set_aside", error=f"{type(error).__name__}: {error}".strip())
        if isinstance(wish, ClaimWish):
            wish.answer(Refusal.NOT_FOUND)
        else:
            wish.answer(False)

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect("worker flusher")
        return self._connection

    def _recover(self, error: psycopg.Error) -> None:
        """A deadlock leaves the connection usable; anything else asks for a new one."""
        if not isinstance(error, psycopg.errors.DeadlockDetected):
            self._drop_connection()
        time.sleep(RECONNECT_S)  # not a wait for a condition, but room for a database that is starting

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _place(park: Park) -> Claim:
    """Where the run lies, for its lock. Nothing is claimed."""
    return Claim(run_id=park.run_id, due_at=park.due_at, claim_id=NOBODY)
