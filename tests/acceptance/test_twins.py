"""The same host name and the same pid twice, as two containers may have them: nothing goes by either."""

import signal
from datetime import timedelta

import psutil
import pytest

from scheduler.project.supervisor import PARENT_VARIABLE
from tests.support.installation import Installation, recording
from tests.support.machine import NAMESPACE
from tests.support.processes import Running, command
from tests.support.wait import wait_until

pytestmark = pytest.mark.namespaces

SCHEDULES = 5
AS_TWIN = 'hostname twin && exec "$@"'


def start_twin(installation: Installation, name: str, *arguments: str) -> Running:
    """The process has pid 1 on a machine called `twin`; `Running` is what started it, outside."""
    argv = [*NAMESPACE, "sh", "-c", AS_TWIN, name, *command(name, *arguments)]
    unwatched = {PARENT_VARIABLE: ""}  # in there, a parent has no pid; unshare ends its child with itself
    return installation.launch.start(name, argv, env={**installation.environ, **unwatched})


def test_two_of_each_kind_under_one_name_neither_meet_nor_end_each_others_runs(
    installation: Installation,
) -> None:
    installation.be_brisk()
    ledger = installation.ledger
    installation.apply(*(recording(f"second-{number}", seconds=0.3) for number in range(SCHEDULES)))
    twins = [
        start_twin(installation, *words)
        for words in (("tick",), ("relay",), ("sweep",), ("worker", "--concurrency", "8"))
        for _ in range(2)
    ]
    names = "SELECT kind, worker, count(*) FROM session WHERE expires_at > clock_timestamp() GROUP BY 1, 2"
    alike = {(kind, "twin:1", 2) for kind in ("tick", "relay", "worker")}
    wait_until(lambda: set(ledger.rows(names)) == alike, 60)
    shares = "SELECT count(*) FROM shard_lease WHERE kind = 'tick' GROUP BY owner"
    wait_until(lambda: ledger.rows(shares) == [(128,), (128,)], 30)

    victim = twins[-1]
    inside = psutil.Process(victim.pid).children()[0]
    inside.send_signal(signal.SIGKILL)
    wait_until(lambda: not victim.running())
    until = ledger.now() + timedelta(seconds=5)
    wait_until(lambda: ledger.settled(until=until), 60, interval=0.2)

    assert [one.label for one in twins[:-1] if not one.running()] == []
    losers = "SELECT count(DISTINCT session_id) FROM attempt WHERE outcome = 'lost'"
    assert ledger.scalar(losers) <= 1, "runs of the living twin were ended"
    assert set(ledger.states(until=until)) == {"SUCCEEDED"}
    report = installation.verify(until=until)
    assert (report.violations, report.totals.behind) == ((), 0)


def test_two_workers_of_one_celery_name_both_work(installation: Installation) -> None:
    """A deployment's own `-n`, twice by mistake, or the old one still connected while the new one starts."""
    installation.apply(*(recording(f"second-{number}", seconds=0.3) for number in range(SCHEDULES)))
    named = ("-n", "billing@%h", "--concurrency", "2")
    started = [installation.start(*words) for words in (("tick",), ("relay",), ("worker", *named))]
    started.append(installation.start("worker", *named))
    at_work = "SELECT count(DISTINCT session_id) FROM attempt WHERE outcome = 'succeeded'"
    wait_until(lambda: installation.ledger.scalar(at_work) == 2, 60)
    assert [one.label for one in started if not one.running()] == []
