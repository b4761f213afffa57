"""HTTP targets in a whole installation: endpoints that answer, hang, promise, report late or twice."""

import threading
from collections.abc import Iterator
from uuid import UUID

import pytest
from standardwebhooks import Webhook

from tests.support.endpoints import Endpoint, Request, Wire, answer, endpoint, hang
from tests.support.house import House, in_turn
from tests.support.installation import Installation, recording
from tests.support.wait import wait_until


@pytest.fixture
def house(installation: Installation) -> House:
    return House(installation)


@pytest.fixture
def server() -> Iterator[Endpoint]:
    with endpoint() as made:
        yield made


def test_endpoints_that_answer_refuse_and_hang(house: House, server: Endpoint) -> None:
    house.worker()
    house.target(server, "plain", schedule={"payload": {"kind": "daily"}})
    run_id = house.run_now("plain")
    house.wait_for(run_id, "SUCCEEDED")
    (request,) = server.requests
    assert Webhook(house.secrets["plain"]).verify(request.body, request.headers) == {"kind": "daily"}
    detail = house.api.get(f"/api/v1/runs/{run_id}").body
    assert detail["result"] == {"status": 200, "body": {"ok": True}}
    assert detail["attempts"][0]["trace_id"] in request.headers["traceparent"]

    server.behave = in_turn(answer(429, Retry_After="2"), answer(200))
    run_id = house.run_now("plain")
    house.wait_for(run_id, "RETRY_WAIT")
    wait = "SELECT extract(epoch FROM dispatch_at - clock_timestamp()) FROM occurrence WHERE id = %(id)s"
    assert 1 < house.ledger.scalar(wait, id=run_id) <= 2  # the policy alone allows half a second
    house.wait_for(run_id, "SUCCEEDED")
    assert house.outcomes(run_id) == ["failed", "succeeded"]

    house.target(server, "slow", schedule={"timeout_s": 1})
    server.behave = in_turn(hang, answer(200))
    run_id = house.run_now("slow")
    house.wait_for(run_id, "SUCCEEDED")
    assert house.outcomes(run_id) == ["timed_out", "succeeded"]
    house.assert_sound()


def test_an_accepted_run_outlives_its_worker_and_ends_once(house: House, server: Endpoint) -> None:
    """Completed after the worker was restarted, under the fence of the call; twice, and by an old fence."""
    first = house.worker()
    house.target(server, "reports")
    server.behave = answer(202)
    run_id = house.run_now("reports")
    fence = house.wait_accepted(run_id)
    assert server.requests[0].headers["x-fencepost-fence"] == str(fence)
    first.process.kill()
    house.worker()
    free_again = house.run_now("reports")
    house.wait_accepted(free_again)  # the new worker is at work, and the sweep has looked meanwhile
    long_dead = "kind = 'worker' AND expires_at < clock_timestamp() - interval '2 s'"
    dead = f"SELECT count(*) FROM session WHERE {long_dead}"
    wait_until(lambda: house.ledger.scalar(dead), 30)
    assert house.tell(run_id, "heartbeat", fence, percent=50).body["cancel_requested"] is False
    assert (house.of_run(run_id, "state"), house.of_run(run_id, "attempt_count")) == ("RUNNING", 1)

    stale = house.tell(run_id, "complete", fence - 1, outcome="failed")
    assert (stale.status, stale.body["code"]) == (409, "superseded_fence")
    for _ in range(2):
        done = house.tell(run_id, "complete", fence, outcome="succeeded", result={"rows": 3})
        assert (done.status, done.body["state"], done.body["result"]) == (200, "SUCCEEDED", {"rows": 3})
    assert house.tell(run_id, "complete", fence, outcome="failed").status == 409
    assert house.outcomes(run_id) == ["succeeded"]
    assert len(server.requests) == 2
    house.assert_sound()


def test_an_endpoint_may_be_faster_than_its_own_answer(house: House, server: Endpoint) -> None:
    worker = house.worker()
    house.target(server, "fast")
    told = []

    def complete_then_promise(request: Request, wire: Wire) -> None:
        run_id, fence = request.headers["x-fencepost-run"], int(request.headers["x-fencepost-fence"])
        told.append(house.tell(UUID(run_id), "complete", fence, outcome="succeeded").status)
        answer(202)(request, wire)

    server.behave = complete_then_promise
    run_id = house.run_now("fast")
    house.wait_for(run_id, "SUCCEEDED")
    wait_until(lambda: house.ledger.scalar("SELECT count(*) FROM lease") == 0)
    worker.end()  # what it had to write of this run is written
    assert (told, house.outcomes(run_id)) == ([200], ["succeeded"])
    assert house.of_run(run_id, "late_writes_refused") == 0
    assert "stale" not in worker.output()
    house.assert_sound()


def test_an_endpoint_that_falls_silent_and_one_that_is_to_stop(house: House, server: Endpoint) -> None:
    house.worker()
    house.target(server, "silent", heartbeat_timeout_s=1)
    server.behave = in_turn(answer(202), answer(200))
    run_id = house.run_now("silent")
    house.wait_for(run_id, "SUCCEEDED")
    assert house.outcomes(run_id) == ["lost", "succeeded"]

    house.target(server, "stoppable", schedule={"cancel_grace_s": 2})
    server.behave = answer(202)
    told, untold = house.run_now("stoppable"), house.run_now("stoppable")
    fence = house.wait_accepted(told)
    house.wait_accepted(untold)
    for one in (told, untold):
        house.ask(f"/runs/{one}/cancel", {}, 202)
    assert house.tell(told, "heartbeat", fence).body["cancel_requested"] is True
    assert house.tell(told, "complete", fence, outcome="failed", error="stopped").body["state"] == "CANCELLED"
    house.wait_for(untold, "CANCELLED")
    house.assert_sound()


@pytest.mark.parametrize("side_effects", ["idempotent", "unsafe_external"])
def test_a_worker_killed_between_call_and_answer(house: House, server: Endpoint, side_effects: str) -> None:
    """The endpoint has the request; nobody of ours has its answer."""
    killed = house.worker("http.after_send:1:KILL")
    house.target(server, "payment", side_effects=side_effects)
    run_id = house.run_now("payment")
    wait_until(lambda: not killed.running(), 60)
    house.worker()
    if side_effects == "idempotent":
        house.wait_for(run_id, "SUCCEEDED")
        first, second = (request.headers for request in server.requests)
        assert house.outcomes(run_id) == ["lost", "succeeded"]
        for name in ("idempotency-key", "webhook-id", "x-fencepost-run"):
            assert first[name] == second[name]
        assert int(first["x-fencepost-fence"]) < int(second["x-fencepost-fence"])
        late = house.tell(run_id, "complete", int(first["x-fencepost-fence"]), outcome="succeeded")
        assert (late.status, late.body["code"]) == (409, "superseded_fence")
    else:
        house.wait_for(run_id, "UNKNOWN")
        (request,) = server.requests
        fence = int(request.headers["x-fencepost-fence"])
        assert house.tell(run_id, "complete", fence, outcome="succeeded").body["state"] == "SUCCEEDED"
        assert house.outcomes(run_id) == ["succeeded"]
    house.assert_sound()


def test_a_worker_killed_once_the_promise_is_on_record(house: House, server: Endpoint) -> None:
    killed = house.worker("http.after_record:1:KILL")
    house.target(server, "reports")
    server.behave = answer(202)
    run_id = house.run_now("reports")
    wait_until(lambda: not killed.running(), 60)
    fence = house.wait_accepted(run_id)
    assert house.tell(run_id, "complete", fence, outcome="succeeded").body["state"] == "SUCCEEDED"
    assert (house.outcomes(run_id), len(server.requests)) == (["succeeded"], 1)
    house.assert_sound()


def test_an_endpoint_that_hangs_holds_up_nobody_else(house: House) -> None:
    """Of eight slots it gets two. What does not fit waits in the ledger, and ends once it answers."""
    release = threading.Event()

    def stuck(request: Request, wire: Wire) -> None:
        release.wait(120)
        answer(200)(request, wire)

    with endpoint(stuck) as sick, endpoint() as well:
        house.worker(concurrency=8)
        house.target(sick, "sick")
        house.target(well, "well")
        house.installation.apply(recording("job"))
        stuck_runs = [house.run_now("sick") for _ in range(8)]
        sick.wait_for(2)
        parked = "SELECT count(*) FROM occurrence WHERE wait_reason = 'endpoint_busy'"
        wait_until(lambda: house.ledger.scalar(parked), 30)
        why = house.api.get(f"/api/v1/runs/{_parked(house)}").body["why"]
        assert "endpoint" in why

        jobs = house.ledger.states().get("SUCCEEDED", 0)
        for _ in range(5):
            house.wait_for(house.run_now("well"), "SUCCEEDED")
        wait_until(lambda: house.ledger.states().get("SUCCEEDED", 0) >= jobs + 5 + 3, 30)  # three of the job
        assert len(sick.requests) == 2
        release.set()
        for run_id in stuck_runs:
            house.wait_for(run_id, "SUCCEEDED")
        assert {house.of_run(run_id, "attempt_count") for run_id in stuck_runs} == {1}
    house.assert_sound()


def _parked(house: House) -> UUID:
    found: UUID = wait_until(
        lambda: house.ledger.rows("SELECT id FROM occurrence WHERE wait_reason = 'endpoint_busy' LIMIT 1"), 30
    )[0][0]
    return found
