"""An effect that must not happen twice: where nobody knows whether it happened, nothing tries it again."""

import signal
from uuid import UUID

import pytest

from tests.support.installation import Installation, recording
from tests.support.wait import wait_until


@pytest.fixture(autouse=True)
def _unsafe_job(installation: Installation) -> None:
    installation.environ["FENCEPOST_JOBS"] = "examples.jobs,tests.support.unsafe_job"
    installation.be_brisk()
    for name in ("tick", "relay", "sweep"):
        installation.start(name)


def ask(installation: Installation, name: str, fails: str = "", target: str = "tests.unsafe") -> UUID:
    """For a run of a schedule of this name, whose retry policy would allow ten attempts."""
    payload = {"fails": fails} if fails else {}
    far_off = recording(name, target=target, payload=payload, every_s=30 * 86400)
    installation.apply(far_off)
    installation.run_now(name)
    found = "SELECT o.id FROM occurrence o JOIN schedule s ON s.id = o.schedule_id WHERE s.name = %(name)s"
    run_id: UUID = installation.ledger.scalar(found, name=name)
    return run_id


def wait_for(installation: Installation, run_id: UUID, state: str) -> None:
    asked = "SELECT state FROM occurrence WHERE id = %(id)s"
    wait_until(lambda: installation.ledger.scalar(asked, id=run_id) == state, 60, message=f"not {state}")


def test_each_end_that_is_no_answer_is_unknown_and_the_others_are_what_they_say(
    installation: Installation,
) -> None:
    worker = installation.start("worker")
    expected = {"": "SUCCEEDED", "before": "FAILED", "for good": "FAILED", "without an answer": "UNKNOWN"}
    for number, (fails, state) in enumerate(expected.items()):
        wait_for(installation, ask(installation, f"payment-{number}", fails), state)
    assert "outcome_unknown" in worker.output()
    assert installation.ledger.scalar("SELECT max(attempt_count) FROM occurrence") == 1
    assert len(installation.effects("begin")) == 3
    assert installation.verify().violations == ()


def test_a_worker_killed_after_the_effect_leaves_it_to_a_person(installation: Installation) -> None:
    killed = installation.start("worker", env={"FENCEPOST_FAULT": "worker.after_effect:1:KILL"})
    run_id = ask(installation, "payment")
    wait_until(lambda: not killed.running(), 60)
    installation.start("worker")
    wait_for(installation, run_id, "UNKNOWN")
    assert installation.ledger.attempts(run_id)[0][2] == "lost"
    assert len(installation.effects("end")) == 1

    installation.reconcile_run(run_id, "retry")
    wait_for(installation, run_id, "SUCCEEDED")
    assert [outcome for _, _, outcome in installation.ledger.attempts(run_id)] == ["lost", "succeeded"]
    assert installation.verify().violations == ()


def test_the_holder_of_the_last_fence_may_still_say_how_it_ended(installation: Installation) -> None:
    stopped = installation.start("worker", env={"FENCEPOST_FAULT": "worker.after_effect:1:STOP"})
    run_id = ask(installation, "payment")
    wait_for(installation, run_id, "UNKNOWN")
    stopped.signal(signal.SIGCONT)
    wait_for(installation, run_id, "SUCCEEDED")
    assert len(installation.effects("end")) == 1
    assert [outcome for _, _, outcome in installation.ledger.attempts(run_id)] == ["succeeded"]
    assert installation.ledger.scalar("SELECT late_writes_refused FROM occurrence") == 0
    assert installation.verify().violations == ()


def test_whoever_is_killed_when_it_has_recorded_an_unknown_outcome_has_told_it(
    installation: Installation,
) -> None:
    """Nobody else would: for all others the run is settled, and waits for a person."""
    kill = {"FENCEPOST_FAULT": "worker.after_complete_commit:1:KILL"}
    told = installation.start("worker", env=kill)
    wait_for(installation, ask(installation, "payment", "without an answer"), "UNKNOWN")
    wait_until(lambda: not told.running(), 60)
    assert told.output().count("outcome_unknown") == 1

    healthy = next(one for one in installation.launch.started if one.label.startswith("sweep"))
    healthy.kill()
    killed = installation.start("worker", env={"FENCEPOST_FAULT": "worker.after_effect:1:KILL"})
    run_id = ask(installation, "another")
    wait_until(lambda: not killed.running(), 60)
    sweep = installation.start("sweep", env={"FENCEPOST_FAULT": "sweep.after_commit:1:KILL"})
    wait_until(lambda: not sweep.running(), 60)
    wait_for(installation, run_id, "UNKNOWN")
    assert sweep.output().count("outcome_unknown") == 1


@pytest.mark.parametrize("pool", ["threads", "prefork", "gevent"])
def test_a_worker_stopped_between_claim_and_effect_does_not_begin_it_when_another_has(
    installation: Installation, pool: str
) -> None:
    stop = {"FENCEPOST_FAULT": "worker.before_ack:1:STOP"}
    stopped = installation.start("worker", "--pool", pool, env=stop)
    run_id = ask(installation, "payment")
    wait_for(installation, run_id, "UNKNOWN")
    installation.start("worker")
    installation.reconcile_run(run_id, "retry")
    wait_for(installation, run_id, "SUCCEEDED")
    stopped.signal(signal.SIGCONT)
    stopped.wait_for("stale")  # what it says of its attempt is heard, and refused
    assert len(installation.effects("begin")) == 1
    assert [outcome for _, _, outcome in installation.ledger.attempts(run_id)] == ["lost", "succeeded"]
    assert installation.verify().violations == ()


def test_a_hook_finds_out_how_it_ended_and_a_worker_killed_while_it_asks_has_it_asked_again(
    installation: Installation,
) -> None:
    killed = installation.start("worker", env={"FENCEPOST_FAULT": "worker.after_effect:1:KILL"})
    run_id = ask(installation, "payment", target="tests.payment")
    wait_until(lambda: not killed.running(), 60)
    asking = installation.start("worker", env={"KILLED_IN_HOOK": "1"})
    wait_until(lambda: not asking.running(), 60)
    assert asking.process.returncode == -signal.SIGKILL, asking.output()
    assert installation.ledger.scalar("SELECT reconcile_tries FROM occurrence") == 1
    assert installation.ledger.scalar("SELECT state FROM occurrence") == "UNKNOWN"
    installation.start("worker")
    wait_for(installation, run_id, "SUCCEEDED")
    assert installation.ledger.scalar("SELECT reconcile_tries FROM occurrence") == 2
    assert len(installation.effects("end")) == 1
    assert installation.ledger.rows("SELECT actor FROM audit_entry WHERE action = 'run.reconcile'") == [
        ("reconcile hook of tests.payment",)
    ]
    assert installation.verify().violations == ()
