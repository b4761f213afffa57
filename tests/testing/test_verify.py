"""A checker that cannot fail is worth nothing: a sound ledger passes, and each way of breaking it is seen."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from scheduler.testing.verify import Report, verify
from tests.support.ledger import HandMadeLedger
from tests.support.processes import REPOSITORY, product_environ

RUNNING, RETRYING, LAST = 5, 6, 60


@pytest.fixture
def ledger(database: str) -> Iterator[HandMadeLedger]:
    """An hour of a schedule due every minute: successes, a lost first attempt, an outage of 20 minutes, an
    attempt that a draining worker handed back, and a run that failed five times and was redriven."""
    made = HandMadeLedger.on(database)
    made.schedule(next_due_at=made.instant(LAST + 2))
    for number in range(1, 4):
        made.attempted(made.instant(number), "SUCCEEDED", "succeeded")
    made.attempted(made.instant(4), "SUCCEEDED", "lost", "succeeded")
    running = made.attempted(made.instant(RUNNING), "RUNNING", "failed", None)
    made.lease(running, made.instant(RUNNING), made.fence)
    retrying = made.attempted(made.instant(RETRYING), "RETRY_WAIT", "failed")
    made.outbox(retrying, made.instant(RETRYING), generation=2)
    handed_back = made.attempted(made.instant(31), "SUCCEEDED", "superseded", "succeeded")
    made.execute("UPDATE occurrence SET attempt_count = 1 WHERE id = %(id)s", id=handed_back)
    redriven = made.attempted(made.instant(32), "SUCCEEDED", *["failed"] * 5, "succeeded")
    made.execute("UPDATE occurrence SET attempts_forgiven = 5 WHERE id = %(id)s", id=redriven)
    made.run(made.instant(30), "SKIPPED", coalesced=24, coalesced_from=made.instant(7), overdue=True)
    for number in range(33, LAST + 1):
        made.attempted(made.instant(number), "SUCCEEDED", "succeeded")
    ahead = made.run(made.instant(LAST + 1), "PENDING")
    made.outbox(ahead, made.instant(LAST + 1), generation=1)
    yield made
    made.connection.close()


def check(database: str, **options: Any) -> Report:
    return verify(database, **options)


def rules(report: Report) -> set[tuple[str, str]]:
    return {(violation.invariant, violation.rule) for violation in report.violations}


def test_a_sound_ledger_passes_and_is_counted(ledger: HandMadeLedger, database: str) -> None:
    report = check(database)
    assert report.violations == ()
    assert (report.totals.schedules, report.totals.runs, report.totals.skipped) == (1, 37, 1)
    assert (report.totals.attempts, report.totals.lost, report.totals.unfinished) == (44, 1, 2)


BREAKS = {
    "a run is missing": (
        ("I1", "due_instants"),
        "DELETE FROM occurrence WHERE due_at = %(second)s; DELETE FROM attempt WHERE due_at = %(second)s",
    ),
    "a run is not at a due instant": (
        ("I1", "due_instants"),
        "UPDATE occurrence SET due_at = due_at + interval '1 s' WHERE due_at = %(skipped)s",
    ),
    "a coalesced run stands for one too many": (
        ("I1", "due_instants"),
        "UPDATE occurrence SET coalesced = 25 WHERE due_at = %(skipped)s",
    ),
    "an instant has runs of two revisions": (
        ("I1", "due_instants"),
        "INSERT INTO occurrence SELECT (jsonb_populate_record(o, %(twin)s)).* FROM occurrence o"
        " WHERE due_at = %(second)s",
    ),
    "a run of a schedule that is not there": (
        ("I1", "due_instants"),
        "UPDATE occurrence SET schedule_id = gen_random_uuid() WHERE due_at = %(skipped)s",
    ),
    "two attempts of a run succeeded": (
        ("I2", "completed_twice"),
        "UPDATE attempt SET outcome = 'succeeded' WHERE due_at = %(fourth)s",
    ),
    "a run succeeded by an attempt that did not": (
        ("I2", "success_without_attempt"),
        "UPDATE attempt SET outcome = 'failed' WHERE due_at = %(second)s",
    ),
    "a run failed by an attempt that succeeded": (
        ("I2", "success_without_attempt"),
        "UPDATE occurrence SET state = 'FAILED' WHERE due_at = %(second)s",
    ),
    "an attempt of an ended run is open": (
        ("I2", "attempt_left_open"),
        "UPDATE attempt SET outcome = NULL, finished_at = NULL WHERE due_at = %(fourth)s AND number = 1",
    ),
    "a second attempt has a smaller fence": (
        ("I3", "fence_not_rising"),
        "UPDATE attempt SET number = 3 - number WHERE due_at = %(fourth)s",
    ),
    "a run goes by an older fence": (
        ("I3", "fence_not_newest"),
        "UPDATE occurrence SET fence = 1 WHERE due_at = %(second)s",
    ),
    "two runs have one fence": (
        ("I3", "fence_used_twice"),
        "UPDATE attempt SET fence = (SELECT fence FROM attempt WHERE due_at = %(second)s)"
        " WHERE due_at = %(fourth)s AND number = 1",
    ),
    "a waiting run has no outbox row": (
        ("I4", "waiting_without_outbox"),
        "DELETE FROM outbox WHERE due_at = %(retrying)s",
    ),
    "a waiting run has only the outbox row of its past": (
        ("I4", "waiting_without_outbox"),
        "UPDATE outbox SET generation = 1 WHERE due_at = %(retrying)s",
    ),
    "an outbox row announces nothing": (
        ("I4", "outbox_without_run"),
        "UPDATE outbox SET run_id = gen_random_uuid() WHERE due_at = %(retrying)s",
    ),
    "a running run has no lease": (("I4", "running_without_lease"), "DELETE FROM lease"),
    "a lease is under an older fence": (("I4", "lease_without_run"), "UPDATE lease SET fence = fence - 1"),
    "a slot is held by a run that ended": (
        ("I4", "slot_not_given_back"),
        "INSERT INTO overlap_slot SELECT schedule_id, id, due_at FROM occurrence WHERE due_at = %(second)s",
    ),
    "an attempt was not counted": (
        ("I8", "attempts_miscounted"),
        "UPDATE occurrence SET attempt_count = 1 WHERE due_at = %(fourth)s",
    ),
    "an attempt that was handed back is counted": (
        ("I8", "attempts_miscounted"),
        "UPDATE attempt SET outcome = 'failed' WHERE outcome = 'superseded'",
    ),
    "a run that nobody redrove is forgiven nothing": (
        ("I8", "attempts_over_limit"),
        "UPDATE occurrence SET attempts_forgiven = 0",
    ),
    "an attempt began after the deadline": (
        ("I8", "attempt_after_deadline"),
        "UPDATE schedule_revision SET retry = retry || '{\"deadline_s\": 60}';"
        "UPDATE attempt SET started_at = due_at + interval '61 s' WHERE due_at = %(second)s",
    ),
    "a run was tried too often": (
        ("I8", "attempts_over_limit"),
        "UPDATE schedule_revision SET retry = '{\"max_attempts\": 1}'",
    ),
}


@pytest.mark.parametrize(("rule", "statements"), BREAKS.values(), ids=BREAKS.keys())
def test_each_break_is_seen(
    ledger: HandMadeLedger, database: str, rule: tuple[str, str], statements: str
) -> None:
    for statement in statements.split(";"):
        ledger.execute(
            statement,
            second=ledger.instant(2),
            fourth=ledger.instant(4),
            retrying=ledger.instant(RETRYING),
            skipped=ledger.instant(30),
            twin=json.dumps({"revision": 2, "id": str(uuid4())}),
        )
    assert rule in rules(check(database))


def test_a_gap_is_one_violation_however_long(ledger: HandMadeLedger, database: str) -> None:
    ledger.execute("DELETE FROM occurrence WHERE due_at = %(due_at)s", due_at=ledger.instant(30))
    (gap,) = check(database).violations
    assert gap.detail.startswith("24 due instants without run or reason: ")


def test_a_window_looks_at_its_own_instants_only(ledger: HandMadeLedger, database: str) -> None:
    ledger.execute("DELETE FROM occurrence WHERE due_at = %(due_at)s", due_at=ledger.instant(2))
    assert not check(database, until=ledger.instant(2)).ok
    assert check(database, since=ledger.instant(3)).ok
    # 7 to 30 became one run: a window that begins or ends among them cannot count them.
    assert check(database, since=ledger.instant(15), until=ledger.instant(20)).ok


def test_a_revision_answers_for_its_own_reign(ledger: HandMadeLedger, database: str) -> None:
    """Revision 2 takes over behind instant 40; the runs after it belong to it."""
    ledger.execute("UPDATE schedule SET revision = 2")
    ledger.revision(2, effective_from=ledger.instant(40))
    assert not check(database).ok
    ledger.execute("UPDATE occurrence SET revision = 2 WHERE due_at > %(at)s", at=ledger.instant(40))
    assert check(database).ok


def test_what_falls_into_a_pause_is_accounted_for(ledger: HandMadeLedger, database: str) -> None:
    pause = "INSERT INTO schedule_pause (schedule_id, began_at, ended_at, resumed_from, paused_by, note)"
    for number in range(41, 51):
        ledger.execute("DELETE FROM attempt WHERE due_at = %(at)s", at=ledger.instant(number))
        ledger.execute("DELETE FROM occurrence WHERE due_at = %(at)s", at=ledger.instant(number))
    assert not check(database).ok
    ledger.execute(
        f"{pause} VALUES (%(schedule)s, %(began)s, %(resumed)s, %(resumed)s, 'test', '')",
        schedule=ledger.schedule_id,
        began=ledger.instant(40),
        resumed=ledger.instant(50),
    )
    assert check(database).ok
    ledger.attempted(ledger.instant(45), "SUCCEEDED", "succeeded")
    assert rules(check(database)) == {("I1", "due_instants")}


def test_a_run_called_off_ahead_may_have_lost_its_timeline(ledger: HandMadeLedger, database: str) -> None:
    between = ledger.instant(40) + timedelta(seconds=30)
    ledger.run(between, "CANCELLED", finished_at=between - timedelta(seconds=5))
    ledger.execute(
        "UPDATE occurrence SET state = 'CANCELLED', finished_at = due_at - interval '5 s',"
        " wait_reason = NULL WHERE state = 'PENDING'"
    )
    ledger.execute("DELETE FROM outbox WHERE generation = 1")
    assert check(database).ok
    ledger.execute("UPDATE occurrence SET finished_at = due_at WHERE due_at = %(at)s", at=between)
    assert rules(check(database)) == {("I1", "due_instants")}


def test_a_schedule_that_the_tick_has_not_got_to_is_behind_not_broken(
    ledger: HandMadeLedger, database: str
) -> None:
    ledger.execute("DELETE FROM attempt WHERE due_at > %(at)s", at=ledger.instant(50))
    ledger.execute("DELETE FROM occurrence WHERE due_at > %(at)s", at=ledger.instant(50))
    ledger.execute("DELETE FROM outbox WHERE due_at > %(at)s", at=ledger.instant(50))
    ledger.execute("UPDATE schedule SET next_due_at = %(at)s", at=ledger.instant(51))
    report = check(database)
    assert (report.ok, report.totals.behind) == (True, 1)


# The effect ledger ------------------------------------------------------------------------------


@pytest.fixture
def sound_effects(ledger: HandMadeLedger, tmp_path: Path) -> list[dict[str, Any]]:
    rows = ledger.connection.execute(
        "SELECT a.run_id, a.due_at, a.fence, a.number, a.outcome FROM attempt a ORDER BY a.fence"
    ).fetchall()
    return [
        effect(phase, run_id=run_id, due_at=due_at.isoformat(), fence=fence, attempt=number)
        for run_id, due_at, fence, number, outcome in rows
        for phase in (("begin", "end") if outcome == "succeeded" else ("begin",))
    ]


def effect(phase: str, *, run_id: UUID, due_at: str, fence: int, attempt: int) -> dict[str, Any]:
    line = {"phase": phase, "run": str(run_id), "due_at": due_at, "fence": fence, "attempt": attempt}
    return {**line, "pid": 1, "at": due_at}


def written(effects: list[dict[str, Any]], folder: Path) -> Path:
    path = folder / "effects.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in effects))
    return path


def test_effects_that_fit_the_ledger_pass(
    ledger: HandMadeLedger, database: str, sound_effects: list[dict[str, Any]], tmp_path: Path
) -> None:
    path = written(sound_effects, tmp_path)
    with path.open("a") as file:
        file.write('{"phase": "begin", "ru')  # killed while it wrote
    assert check(database, effects_file=path).violations == ()


def repeated(effects: list[dict[str, Any]]) -> None:
    effects.append(effects[0])


def of_no_attempt(effects: list[dict[str, Any]]) -> None:
    effects[0] |= {"fence": 7}


def end_without_begin(effects: list[dict[str, Any]]) -> None:
    del effects[0]


def success_unseen(effects: list[dict[str, Any]]) -> None:
    del effects[2:4]


@pytest.mark.parametrize("spoil", [repeated, of_no_attempt, end_without_begin, success_unseen])
def test_each_effect_that_does_not_fit_is_seen(
    ledger: HandMadeLedger,
    database: str,
    sound_effects: list[dict[str, Any]],
    tmp_path: Path,
    spoil: Callable[[list[dict[str, Any]]], None],
) -> None:
    spoil(sound_effects)
    report = check(database, effects_file=written(sound_effects, tmp_path))
    assert rules(report) == {("effects", "effect_ledger")}


def test_a_success_that_a_person_has_told_needs_no_effect(
    ledger: HandMadeLedger, database: str, sound_effects: list[dict[str, Any]], tmp_path: Path
) -> None:
    success_unseen(sound_effects)
    path = written(sound_effects, tmp_path)
    (seen,) = check(database, effects_file=path).violations
    run = {"run": seen.subject}
    ledger.execute(
        "UPDATE attempt SET outcome = 'lost' WHERE run_id = %(run)s AND outcome = 'succeeded'", **run
    )
    ledger.execute("UPDATE occurrence SET reconciled_at = finished_at WHERE id = %(run)s", **run)
    assert check(database, effects_file=path).violations == ()


def test_an_attempt_that_began_before_it_was_due_is_seen(
    ledger: HandMadeLedger, database: str, sound_effects: list[dict[str, Any]], tmp_path: Path
) -> None:
    ledger.execute("UPDATE attempt SET started_at = started_at - interval '1 ms' WHERE number = 1")
    report = check(database, effects_file=written(sound_effects, tmp_path))
    assert rules(report) == {("effects", "effect_ledger")}


# The command ------------------------------------------------------------------------------------


def command(database: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = product_environ(DATABASE_URL=database, SECRET_KEY="tests", ALLOWED_HOSTS="localhost")
    argv = [sys.executable, "manage.py", "verify", *arguments]
    return subprocess.run(argv, cwd=REPOSITORY, env=environ, capture_output=True, text=True, timeout=60)


def test_the_command_says_what_is_broken_by_text_json_and_exit_code(
    ledger: HandMadeLedger, database: str
) -> None:
    sound = command(database)
    assert (sound.returncode, "Nothing is broken." in sound.stdout) == (0, True), sound.stderr
    ledger.execute("DELETE FROM lease")
    broken = command(database, "--json", "--since", (ledger.start - timedelta(days=1)).isoformat())
    assert broken.returncode == 1
    report = json.loads(broken.stdout)
    assert [violation["rule"] for violation in report["violations"]] == ["running_without_lease"]
