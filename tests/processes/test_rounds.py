"""Rounds of tick, relay and sweep, each called once on a real database; and who owns which shard."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from scheduler import telemetry
from scheduler.broker import Envelope
from scheduler.clock import database_now
from scheduler.processes.ownership import Ownership
from scheduler.processes.relay import Relay
from scheduler.processes.sweep import Sweep
from scheduler.processes.tick import Tick
from scheduler.store import sessions
from tests.support.ledger import HandMadeLedger
from tests.support.wait import wait_until

Connection = psycopg.Connection[Any]


def ownership(kind: str = "tick", *, lease_s: float = 6.0, ignore: bool = False) -> Ownership:
    return Ownership(kind, shard_count=256, wanted=range(256), lease_s=lease_s, ignore=ignore)


def tick() -> Tick:
    return Tick(ownership(ignore=True), look_ahead_s=10, batch=1000)


class Notebook:
    """A broker's place, for rounds whose point is not the broker: notes what it is given, or is away."""

    def __init__(self, *, away: bool = False, confirms: bool = True) -> None:
        self.away = away
        self.confirms = confirms
        self.given: list[Envelope] = []

    def connect(self) -> None:
        if self.away:
            raise ConnectionRefusedError

    def publish(self, envelopes: Sequence[Envelope]) -> list[Envelope]:
        self.given += envelopes
        return list(envelopes) if self.confirms else []

    def close(self) -> None:
        """Nothing is open."""


def run(process: Any, connection: Connection, now: datetime | None = None) -> Any:
    return process.run_once(connection, now or database_now(connection))


def states(connection: Connection) -> dict[str, int]:
    return dict(connection.execute("SELECT state, count(*) FROM occurrence GROUP BY state").fetchall())


# Tick -----------------------------------------------------------------------------------------------------


def test_a_tick_makes_rows_up_to_its_look_ahead(ledger: HandMadeLedger, connection: Connection) -> None:
    ledger.execute("UPDATE schedule_revision SET trigger = jsonb_set(trigger, '{interval,every_s}', '1')")
    now = ledger.instant(0)
    ledger.execute("UPDATE schedule SET next_due_at = %(at)s", at=now)
    report = run(tick(), connection, now)
    assert report.counts == {"schedules": 1, "occurrences": 11, "faulted": 0}
    assert not report.more
    assert run(tick(), connection, now).counts["schedules"] == 0


def test_a_poison_trigger_is_set_aside_and_the_round_goes_on(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    good = ledger.schedule_id
    ledger.schedule_id = type(good)(int=good.int ^ 1)
    ledger.execute("UPDATE schedule SET name = 'good'")
    ledger.schedule(next_due_at=ledger.instant(1))
    ledger.execute(
        "UPDATE schedule_revision SET trigger = '{\"cron\": 5}' WHERE schedule_id = %(id)s",
        id=ledger.schedule_id,
    )
    report = run(tick(), connection)
    assert (report.counts["schedules"], report.counts["faulted"]) == (2, 1)
    rows = connection.execute("SELECT id, state, fault <> '' FROM schedule").fetchall()
    assert set(rows) == {(good, "active", False), (ledger.schedule_id, "faulted", True)}


def test_after_downtime_the_latest_missed_instant_runs_once(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    run(tick(), connection)  # the hand-made schedule has been due every minute for an hour
    (run_row,) = connection.execute(
        "SELECT state, overdue, coalesced, coalesced_from FROM occurrence WHERE due_at <= clock_timestamp()"
    ).fetchall()
    state, overdue, coalesced, first = run_row
    assert (state, overdue, first) == ("PENDING", True, ledger.instant(1))
    assert 59 <= coalesced <= 61


# Ownership ------------------------------------------------------------------------------------------------


def test_a_single_process_owns_everything_and_gives_it_back(connection: Connection) -> None:
    owner = ownership()
    assert len(owner.hold(connection, database_now(connection))) == 256
    owner.retire(connection)
    assert connection.execute("SELECT count(*) FROM shard_lease WHERE owner IS NOT NULL").fetchone() == (0,)
    assert connection.execute("SELECT count(*) FROM session").fetchone() == (0,)


def test_a_second_process_gets_its_half_and_no_shard_has_two_owners(connection: Connection) -> None:
    first, second = ownership(lease_s=0.9), ownership(lease_s=0.9)
    deadline = database_now(connection).timestamp() + 20
    mine: list[int] = []
    theirs: list[int] = []
    while (len(mine), len(theirs)) != (128, 128) and database_now(connection).timestamp() < deadline:
        mine = first.hold(connection, database_now(connection))
        theirs = second.hold(connection, database_now(connection))
        assert not set(mine) & set(theirs)
    assert set(mine) | set(theirs) == set(range(256))


def test_shards_of_a_process_that_died_are_taken_when_its_lease_runs_out(connection: Connection) -> None:
    ownership(lease_s=3600).hold(connection, database_now(connection))
    successor = ownership()
    assert successor.hold(connection, database_now(connection)) == []
    connection.execute("UPDATE shard_lease SET expires_at = clock_timestamp()")
    connection.execute("UPDATE session SET expires_at = clock_timestamp()")
    successor.forget()
    assert len(successor.hold(connection, database_now(connection))) == 256


def test_after_a_lost_connection_a_process_goes_on_with_its_shards_at_once(connection: Connection) -> None:
    """It believes in none of them until the database has said so, and does not wait for its own lease."""
    owner = ownership(lease_s=3600)
    owner.hold(connection, database_now(connection))
    owner.forget()
    assert len(owner.hold(connection, database_now(connection))) == 256
    owner.forget()
    connection.execute("UPDATE shard_lease SET owner = gen_random_uuid() WHERE shard < 100")
    assert owner.hold(connection, database_now(connection)) == list(range(100, 256))


def test_a_host_whose_clock_is_far_off_owns_nothing(connection: Connection) -> None:
    wrong = datetime.fromisoformat("2020-01-01T00:00Z")
    assert ownership().hold(connection, wrong) == []
    assert len(ownership(ignore=True).hold(connection, wrong)) == 256


# Relay ----------------------------------------------------------------------------------------------------


def due_now(ledger: HandMadeLedger, connection: Connection) -> None:
    due_at = database_now(connection).replace(microsecond=0)
    ledger.outbox(ledger.run(due_at, "PENDING"), due_at, 1)


def test_what_is_due_is_released_published_and_forgotten(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    due_now(ledger, connection)
    broker = Notebook()
    run(Relay(ownership("relay"), broker), connection)
    assert [(one.target, one.queue, one.generation) for one in broker.given] == [
        ("demo.record", "fencepost.default.normal", 1)
    ]
    assert states(connection) == {"QUEUED": 1}
    assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)


def test_without_a_broker_nothing_is_released(ledger: HandMadeLedger, connection: Connection) -> None:
    due_now(ledger, connection)
    report = run(Relay(ownership("relay"), Notebook(away=True)), connection)
    assert report.wait_s > 0
    assert states(connection) == {"PENDING": 1}


WAITING_RETRIES = """
WITH run AS (
    INSERT INTO occurrence (id, due_at, schedule_id, revision, origin, origin_key, tenant_id, shard, overlap,
                            state, dispatch_at, generation, attempt_count, fence, created_at, started_at,
                            tzdata_version)
    SELECT gen_random_uuid(), s.created_at, s.id, 1, 'trigger', gen_random_uuid(), s.tenant_id, s.shard,
           'allow', 'RETRY_WAIT', clock_timestamp() + interval '1 hour', 1, 1, nextval('fence_seq'),
           s.created_at, s.created_at, 'test'
    FROM schedule s, generate_series(1, %(count)s)
    RETURNING id, due_at, dispatch_at, shard, generation
)
INSERT INTO outbox (dispatch_at, run_id, due_at, shard, generation)
SELECT dispatch_at, id, due_at, shard, generation + 1 FROM run
"""


def test_ten_thousand_retries_that_wait_are_no_messages(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    """They lie in the ledger until their time; a round takes none of them up."""
    ledger.execute(WAITING_RETRIES, count=10_000)
    broker = Notebook()
    report = run(Relay(ownership("relay"), broker), connection)
    assert (dict(report.counts), broker.given) == ({}, [])
    assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (10_000,)


def test_what_the_broker_did_not_confirm_stays_on_the_agenda(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    due_now(ledger, connection)
    run(Relay(ownership("relay"), Notebook(confirms=False)), connection)
    assert states(connection) == {"QUEUED": 1}
    (soon,) = connection.execute(
        "SELECT dispatch_at < clock_timestamp() + interval '5 s' FROM outbox"
    ).fetchone() or (0,)
    assert soon


def test_nothing_is_published_before_its_release_is_committed(
    ledger: HandMadeLedger, connect: Callable[[], Connection]
) -> None:
    """A worker that got the message sooner would find the run PENDING, refuse it and acknowledge."""
    mine, theirs = connect(), connect()
    due_now(ledger, mine)
    seen: list[dict[str, int]] = []

    class Watched(Notebook):
        def publish(self, envelopes: Sequence[Envelope]) -> list[Envelope]:
            seen.append(states(theirs))
            return super().publish(envelopes)

    run(Relay(ownership("relay"), Watched()), mine)
    assert seen == [{"QUEUED": 1}]


def test_a_relay_that_takes_over_publishes_what_was_released_already(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    due_now(ledger, connection)
    run(Relay(ownership("relay", ignore=True), Notebook(confirms=False)), connection)
    connection.execute("UPDATE outbox SET dispatch_at = clock_timestamp()")
    successor = Notebook()
    run(Relay(ownership("relay", ignore=True), successor), connection)
    assert [one.generation for one in successor.given] == [1]


def test_a_release_whose_commit_was_not_heard_is_published_soon(
    ledger: HandMadeLedger, connection: Connection, clean_database: str
) -> None:
    """Its row stands as long as a confirm may take, and nobody has published: its own relay looks again."""

    class Unheard(psycopg.Connection[Any]):
        def commit(self) -> None:
            super().commit()
            raise psycopg.OperationalError("the answer was lost")

    due_now(ledger, connection)
    broker = Notebook()
    process = Relay(ownership("relay", ignore=True), broker)
    with Unheard.connect(clean_database, autocommit=True) as cut:
        with pytest.raises(psycopg.OperationalError):
            run(process, cut)
        process.disconnected()
        cut.close()
    assert (states(connection), broker.given) == ({"QUEUED": 1}, [])

    def published() -> list[Envelope]:
        run(process, connection)
        return broker.given

    assert [one.generation for one in wait_until(published)] == [1]


def test_a_row_that_is_committed_late_with_an_earlier_time_is_not_missed(
    ledger: HandMadeLedger, connect: Callable[[], Connection]
) -> None:
    """A retry or a run asked for now: a relay that went on from where it was would never look back."""
    mine, theirs = connect(), connect()
    broker = Notebook()
    process = Relay(ownership("relay", ignore=True), broker)
    early = ledger.instant(58)
    run_id = ledger.run(early, "PENDING", origin="trigger", origin_key=uuid4())
    with theirs.transaction():
        theirs.execute(
            "INSERT INTO outbox (dispatch_at, run_id, due_at, shard, generation) VALUES (%s, %s, %s, 0, 1)",
            [early, run_id, early],
        )
        due_now(ledger, mine)
        run(process, mine)
        assert len(broker.given) == 1
    run(process, mine)
    assert [one.run_id for one in broker.given][1:] == [run_id]


def test_after_an_outage_of_the_relay_a_minutely_job_runs_once(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    for number in range(30, 60):
        ledger.outbox(ledger.run(ledger.instant(number), "PENDING"), ledger.instant(number), 1)
    broker = Notebook()
    run(Relay(ownership("relay"), broker), connection)
    assert states(connection) == {"SKIPPED": 29, "QUEUED": 1}
    assert [one.due_at for one in broker.given] == [ledger.instant(59)]


# Sweep ----------------------------------------------------------------------------------------------------


def sweep(rate_per_s: float = 200) -> Sweep:
    return Sweep(session_s=30, dispatch_grace_s=5, rate_per_s=rate_per_s, breaker_at=0.85)


def held_by_nobody(ledger: HandMadeLedger, *, attempts: int = 1, number: int = 1) -> None:
    outcomes = ["failed"] * (attempts - 1) + [None]
    run_id = ledger.attempted(ledger.instant(number), "RUNNING", *outcomes)
    ledger.lease(run_id, ledger.instant(number), ledger.fence)


@pytest.mark.parametrize(("attempts", "after"), [(1, "RETRY_WAIT"), (5, "DEAD_LETTERED")])
def test_orphans_are_put_back_while_attempts_are_left(
    attempts: int, after: str, ledger: HandMadeLedger, connection: Connection
) -> None:
    held_by_nobody(ledger, attempts=attempts)
    assert run(sweep(), connection).counts["lost"] == 1
    assert states(connection) == {after: 1}
    last = connection.execute("SELECT outcome FROM attempt ORDER BY number DESC").fetchone()
    assert last == ("lost",)
    assert connection.execute("SELECT count(*) FROM lease").fetchone() == (0,)


def test_live_leases_are_untouched_until_their_time_is_up(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    held_by_nobody(ledger)
    sessions.open_session(
        connection, ledger.session_id, kind="worker", worker="host:1", capacity=1, length_s=30
    )
    assert run(sweep(), connection).counts["lost"] == 0
    connection.execute("UPDATE lease SET ends_by = clock_timestamp()")
    assert run(sweep(), connection).counts["timed_out"] == 1
    assert connection.execute("SELECT outcome FROM attempt").fetchone() == ("timed_out",)


@pytest.mark.parametrize("guard", ["lost", "timed_out"])
def test_what_ends_at_an_unsafe_target_without_an_answer_is_unknown(
    guard: str, ledger: HandMadeLedger, connection: Connection
) -> None:
    held_by_nobody(ledger)
    connection.execute("UPDATE target SET side_effects = 'unsafe_external'")
    alerts = telemetry.ALERTS.labels("outcome_unknown")._value.get()
    if guard == "timed_out":
        sessions.open_session(
            connection, ledger.session_id, kind="worker", worker="host:1", capacity=1, length_s=30
        )
        connection.execute("UPDATE lease SET ends_by = clock_timestamp()")
    assert run(sweep(), connection).counts[guard] == 1
    assert states(connection) == {"UNKNOWN": 1}
    assert telemetry.ALERTS.labels("outcome_unknown")._value.get() == alerts + 1
    assert connection.execute("SELECT outcome FROM attempt").fetchone() == (guard,)


@pytest.mark.parametrize("begins_after_it", [False, True], ids=["the same sweep", "one that begins later"])
def test_after_a_gap_of_all_sweeps_each_waits_a_session_length(
    begins_after_it: bool, ledger: HandMadeLedger, connection: Connection
) -> None:
    process, other = sweep(), sweep()
    run(process, connection)
    connection.execute("UPDATE sweep_turn SET looked_at = looked_at - interval '15 s'")  # Postgres was away
    held_by_nobody(ledger)
    process = sweep() if begins_after_it else process
    assert run(process, connection).counts["lost"] == 0
    assert run(other, connection).counts["lost"] == 0  # has seen no gap, and is held all the same
    connection.execute("UPDATE sweep_turn SET held_until = held_until - interval '30 s'")
    assert run(process, connection).counts["lost"] == 1


@pytest.mark.parametrize(
    ("busy", "queued_s_ago", "redispatched"), [(0, 6, 1), (1, 6, 0), (0, 3, 0), (None, 60, 0)]
)
def test_unclaimed_runs_are_sent_again_only_where_a_live_worker_is_free(
    busy: int | None, queued_s_ago: int, redispatched: int, ledger: HandMadeLedger, connection: Connection
) -> None:
    """With all of them busy, or none there, the message is probably just waiting."""
    ledger.run(ledger.instant(1), "QUEUED")
    connection.execute(
        "UPDATE occurrence SET queued_at = clock_timestamp() - make_interval(secs => %s)", [queued_s_ago]
    )
    if busy is not None:
        sessions.open_session(
            connection, ledger.session_id, kind="worker", worker="host:1", capacity=1, length_s=30
        )
        connection.execute("UPDATE session SET busy = %s", [busy])
    assert run(sweep(), connection).counts["redispatched"] == redispatched
    assert connection.execute("SELECT array_agg(generation) FROM outbox").fetchone() == (
        ([2],) if redispatched else (None,)
    )


def test_a_run_without_a_waker_is_armed_again(ledger: HandMadeLedger, connection: Connection) -> None:
    ledger.run(ledger.instant(1), "PENDING")
    assert run(sweep(), connection).counts["rearmed"] == 1
    assert run(sweep(), connection).counts["rearmed"] == 0


def live_workers(ledger: HandMadeLedger, connection: Connection, count: int = 1, capacity: int = 100) -> None:
    for _ in range(count):
        sessions.open_session(
            connection, uuid4(), kind="worker", worker="host:1", capacity=capacity, length_s=600
        )


def next_turn(connection: Connection) -> None:
    connection.execute("UPDATE sweep_turn SET taken_at = taken_at - interval '1 s'")


def test_the_way_back_is_limited_for_all_sweeps_together(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    live_workers(ledger, connection)
    for number in range(1, 8):
        held_by_nobody(ledger, number=number)
    first, second = sweep(rate_per_s=3), sweep(rate_per_s=3)
    lost = []
    for _ in range(3):
        lost += [run(first, connection).counts["lost"], run(second, connection).counts["lost"]]
        next_turn(connection)
    assert lost == [3, 0, 3, 0, 1, 0]


def test_while_the_living_are_full_only_a_trickle_goes_back_and_then_the_rest(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    """Leases of the dead do not count as busy: they would hold the breaker open until they were gone."""
    for number in range(1, 61):
        held_by_nobody(ledger, number=number)
    dead, ledger.session_id = ledger.session_id, uuid4()
    sessions.open_session(connection, dead, kind="worker", worker="host:1", capacity=60, length_s=-1)
    sessions.open_session(
        connection, ledger.session_id, kind="worker", worker="host:2", capacity=4, length_s=600
    )
    for number in range(61, 65):
        held_by_nobody(ledger, number=number)
    process = sweep(rate_per_s=100)
    assert run(process, connection).counts["lost"] == 5
    assert process._broken
    next_turn(connection)
    connection.execute("UPDATE session SET capacity = 5 WHERE id = %s", [ledger.session_id])
    assert run(process, connection).counts["lost"] == 55  # four of five is below the threshold
    assert not process._broken
    live = connection.execute("SELECT count(*) FROM lease WHERE session_id = %s", [ledger.session_id])
    assert live.fetchone() == (4,)


def test_what_runs_past_its_limit_in_a_dead_session_is_part_of_the_limited_way_back(
    ledger: HandMadeLedger, connection: Connection
) -> None:
    live_workers(ledger, connection)
    for number in range(1, 4):
        held_by_nobody(ledger, number=number)
    connection.execute("UPDATE lease SET ends_by = clock_timestamp()")
    assert run(sweep(rate_per_s=1), connection).counts["lost"] == 1
    assert connection.execute("SELECT count(*) FROM lease").fetchone() == (2,)


def test_two_sweeps_at_once_end_each_orphan_once(
    ledger: HandMadeLedger, connect: Callable[[], Connection]
) -> None:
    held_by_nobody(ledger)
    first, second = connect(), connect()
    assert run(sweep(), first).counts["lost"] + run(sweep(), second).counts["lost"] == 1


def test_a_schedule_that_somebody_holds_is_passed_over_not_waited_for(
    ledger: HandMadeLedger, connect: Callable[[], Connection]
) -> None:
    """`apply` locks many one by one: a tick that waited for one while holding another would deadlock."""
    mine, theirs = connect(), connect()
    with theirs.transaction():
        theirs.execute("SELECT FROM schedule FOR UPDATE")
        assert run(tick(), mine).counts["occurrences"] == 0
    assert run(tick(), mine).counts["occurrences"] > 0
