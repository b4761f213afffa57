"""A run of an HTTP target on a real ledger, from the claim over a real socket to what is on record."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from standardwebhooks import Webhook

from scheduler.core.networks import networks_of
from scheduler.core.states import Refusal
from scheduler.credentials import Credentials, SigningSecret, new_signing_secret
from scheduler.errors import FencepostError, PermanentError, RetryLater
from scheduler.store import accepted
from scheduler.store.sessions import Load
from scheduler.worker import http_target
from scheduler.worker.endpoints import EndpointBounds
from scheduler.worker.outbound import Answer, Client
from scheduler.worker.runtime import Worker
from tests.support.endpoints import Endpoint, Request, Wire, answer, endpoint, hang, hang_up
from tests.support.ledger import TARGET, HandMadeLedger
from tests.support.wait import wait_until

SECRET = new_signing_secret()
CANARY = "canary-5f1c"
NOW = datetime(2026, 12, 1, 9, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoints of these tests are on this machine."""
    client = Client(allowed=networks_of("127.0.0.0/8"))
    monkeypatch.setattr(http_target, "_client", lambda: client)


@pytest.fixture
def worker(clean_database: str) -> Iterator[Worker]:
    made = Worker(
        lambda name: psycopg.connect(clean_database, autocommit=True, application_name=name),
        name="host:1",
        session_s=30,
        load=lambda: Load(capacity=8),
        abandoned=lambda: None,
        endpoints=EndpointBounds(capacity=lambda: 8, share=0.5),
    )
    made.start()
    wait_until(lambda: made.can_claim)
    yield made
    made.finish(10)


@pytest.fixture
def server() -> Iterator[Endpoint]:
    with endpoint() as made:
        yield made


class Caller:
    """Has the ledger's target call a server, and tells what became of it."""

    def __init__(self, ledger: HandMadeLedger, worker: Worker) -> None:
        self.ledger = ledger
        self.worker = worker
        self.number = 0

    def promise_heartbeats(self, every_s: int) -> None:
        self.ledger.execute("UPDATE schedule_revision SET heartbeat_timeout_s = %(s)s", s=every_s)

    def point_at(self, url: str, *, signing: str = SECRET, **columns: Any) -> None:
        credentials = Credentials(signing=(SigningSecret(text=signing),), headers={"X-Api-Key": CANARY})
        values = {"kind": "http", "url": url, "sealed": credentials.seal(), **columns}
        changed = ", ".join(f"{name} = %({name})s" for name in values)
        self.ledger.execute(f"UPDATE target SET {changed} WHERE id = %(id)s", id=TARGET, **values)

    def queue(self) -> tuple[UUID, datetime]:
        self.number += 1
        due_at = self.ledger.instant(self.number)
        return self.ledger.run(due_at, "QUEUED"), due_at

    def claim(self, run_id: UUID, due_at: datetime, host: str = "here") -> UUID | Refusal:
        answers: list[UUID | Refusal] = []
        self.worker.claim(run_id, due_at, answers.append, endpoint=host, generation=1)
        wait_until(lambda: answers)
        return answers[0]

    def run(self) -> tuple[UUID, BaseException | None]:
        run_id, due_at = self.queue()
        claim_id = self.claim(run_id, due_at)
        assert isinstance(claim_id, UUID)
        error = self.worker.execute(claim_id, http_target.SPEC)
        wait_until(lambda: not self.worker.held())
        return run_id, error

    def of_run(self, run_id: UUID, columns: str) -> Any:
        row = self.ledger.connection.execute(
            f"SELECT {columns} FROM occurrence o LEFT JOIN attempt a ON a.run_id = o.id"
            " LEFT JOIN lease l ON l.run_id = o.id WHERE o.id = %s".encode(),
            [run_id],
        ).fetchone()
        assert row is not None
        return row[0] if len(row) == 1 else row


@pytest.fixture
def caller(ledger: HandMadeLedger, worker: Worker, server: Endpoint) -> Caller:
    made = Caller(ledger, worker)
    made.point_at(server.url)
    return made


def test_a_run_is_one_signed_post_and_its_answer_the_result(caller: Caller, server: Endpoint) -> None:
    caller.ledger.execute('UPDATE schedule_revision SET payload = \'{"kind": "täglich", "ctx": 1}\'')
    server.behave = answer(200, b'{"rows": 3}')
    run_id, error = caller.run()
    assert error is None
    (request,) = server.requests
    state, result, fence, trace_id = caller.of_run(run_id, "o.state, o.result, a.fence, a.trace_id")
    assert (state, result) == ("SUCCEEDED", {"status": 200, "body": {"rows": 3}})
    assert request.json == {"kind": "täglich", "ctx": 1}
    assert request.headers["content-type"] == "application/json"
    assert request.headers["x-fencepost-run"] == str(run_id)
    assert request.headers["x-fencepost-attempt"] == "1"
    assert request.headers["x-fencepost-fence"] == str(fence)
    assert datetime.fromisoformat(request.headers["x-fencepost-due-at"]) == caller.ledger.instant(1)
    assert request.headers["idempotency-key"]
    assert request.headers["traceparent"] == f"00-{trace_id}-{fence:016x}-01"
    assert request.headers["x-api-key"] == CANARY
    assert Webhook(SECRET).verify(request.body, request.headers) == request.json
    assert request.headers["webhook-id"] == str(run_id)


def test_attempts_share_key_and_message_id_and_nothing_else(caller: Caller, server: Endpoint) -> None:
    server.behave = answer(503)
    run_id, _ = caller.run()
    caller.ledger.connection.execute(
        "UPDATE occurrence SET state = 'QUEUED', generation = 2, queued_at = now(), dispatch_at = now(),"
        ' progress = \'{"resume": {"page": "fünf"}}\''
    )
    claim_id = caller.claim(run_id, caller.ledger.instant(1))
    assert isinstance(claim_id, UUID)
    caller.worker.execute(claim_id, http_target.SPEC)
    first, second = (request.headers for request in server.requests)
    assert json.loads(second["x-fencepost-resume"]) == {"page": "fünf"}
    assert "x-fencepost-resume" not in first
    same = {name for name in first if first[name] == second.get(name)}
    assert {"idempotency-key", "webhook-id", "x-fencepost-run", "x-fencepost-due-at"} <= same
    assert not {"x-fencepost-attempt", "x-fencepost-fence", "traceparent"} & same


@pytest.mark.parametrize(
    ("behave", "effects", "state", "outcome"),
    [
        (answer(200), "idempotent", "SUCCEEDED", "succeeded"),
        (answer(204), "unsafe_external", "SUCCEEDED", "succeeded"),
        (answer(400, b"no such account"), "idempotent", "FAILED", "failed"),
        (answer(404), "unsafe_external", "FAILED", "failed"),
        (answer(302, Location="http://169.254.169.254/"), "idempotent", "FAILED", "failed"),
        (answer(303, Location="/done"), "unsafe_external", "UNKNOWN", "failed"),
        (answer(408), "idempotent", "RETRY_WAIT", "failed"),
        (answer(425), "idempotent", "RETRY_WAIT", "failed"),
        (answer(429), "idempotent", "RETRY_WAIT", "failed"),
        (answer(429), "unsafe_external", "FAILED", "failed"),
        (answer(500), "idempotent", "RETRY_WAIT", "failed"),
        (answer(500), "fenced", "RETRY_WAIT", "failed"),
        (answer(500), "unsafe_external", "UNKNOWN", "failed"),
        (hang_up, "idempotent", "RETRY_WAIT", "failed"),
        (hang_up, "unsafe_external", "UNKNOWN", "failed"),
        (hang, "idempotent", "RETRY_WAIT", "timed_out"),
        (hang, "unsafe_external", "UNKNOWN", "timed_out"),
    ],
)
def test_an_answer_leads_where_its_class_says(
    caller: Caller, server: Endpoint, behave: Any, effects: str, state: str, outcome: str
) -> None:
    caller.point_at(server.url, side_effects=effects)
    caller.ledger.execute("UPDATE schedule_revision SET timeout_s = 1")
    server.behave = behave
    run_id, _ = caller.run()
    assert caller.of_run(run_id, "o.state, a.outcome") == (state, outcome)
    assert server.connections == 1


@pytest.mark.parametrize(
    ("url", "effects", "state", "told"),
    [
        ("http://127.0.0.1:1/", "idempotent", "RETRY_WAIT", "refused"),
        ("http://127.0.0.1:1/", "unsafe_external", "FAILED", "refused"),
        ("http://10.0.0.1/", "idempotent", "FAILED", "may not be called"),
        ("http://10.0.0.1/", "unsafe_external", "FAILED", "may not be called"),
        ("http://nobody.invalid/", "unsafe_external", "FAILED", "cannot be resolved"),
    ],
)
def test_what_was_never_sent_is_known_not_to_have_happened(
    caller: Caller, url: str, effects: str, state: str, told: str
) -> None:
    caller.point_at(url, side_effects=effects)
    run_id, _ = caller.run()
    found, error = caller.of_run(run_id, "o.state, o.error")
    assert found == state
    assert told in error["message"]


def test_a_target_that_is_switched_off_or_sealed_by_another_key_is_not_called(
    caller: Caller, server: Endpoint
) -> None:
    caller.point_at(server.url, enabled=False)
    assert caller.of_run(caller.run()[0], "o.state, o.error->>'message'") == (
        "FAILED",
        "The target 'demo.record' is switched off; nothing was sent.",
    )
    caller.point_at(server.url, enabled=True, sealed="gAAAA-of-another-key")
    assert caller.of_run(caller.run()[0], "o.state, o.error->>'type'") == ("RETRY_WAIT", "NotStarted")
    assert server.connections == 0


@pytest.mark.parametrize(
    ("effects", "state", "calls"), [("idempotent", "CANCELLED", 0), ("unsafe_external", "CANCELLED", 0)]
)
def test_a_run_that_was_called_off_before_it_was_sent_is_not_sent(
    caller: Caller, server: Endpoint, effects: str, state: str, calls: int
) -> None:
    caller.point_at(server.url, side_effects=effects)
    run_id, due_at = caller.queue()
    claim_id = caller.claim(run_id, due_at)
    caller.ledger.execute("UPDATE occurrence SET cancel_requested_at = now()")
    caller.worker.held()[0].cancelled.set()  # as the next renewal does
    assert isinstance(claim_id, UUID)
    caller.worker.execute(claim_id, http_target.SPEC)
    wait_until(lambda: not caller.worker.held())
    assert (caller.of_run(run_id, "o.state"), server.connections) == (state, calls)


@pytest.mark.parametrize("effects", ["idempotent", "unsafe_external"])
def test_one_that_is_called_off_while_its_name_is_looked_up_has_not_begun(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, effects: str
) -> None:
    answers = threading.Event()

    def resolve(host: str, port: int) -> list[Any]:
        caller.ledger.execute("UPDATE occurrence SET cancel_requested_at = now()")
        caller.worker.held()[0].cancelled.set()
        answers.wait(30)
        return []

    monkeypatch.setattr(http_target, "_client", lambda: Client(resolve=resolve))
    caller.point_at("http://slow.example/", side_effects=effects)
    run_id, _ = caller.run()
    answers.set()
    assert caller.of_run(run_id, "o.state") == "CANCELLED"


@pytest.mark.parametrize(("effects", "state"), [("idempotent", "CANCELLED"), ("unsafe_external", "UNKNOWN")])
def test_one_that_is_called_off_after_it_was_sent_may_have_happened(
    caller: Caller, server: Endpoint, effects: str, state: str
) -> None:
    def never_mind(request: Request, wire: Wire) -> None:
        caller.ledger.execute("UPDATE occurrence SET cancel_requested_at = now()")
        caller.worker.held()[0].cancelled.set()
        hang(request, wire)

    server.behave = never_mind
    caller.point_at(server.url, side_effects=effects)
    run_id, _ = caller.run()
    assert caller.of_run(run_id, "o.state, a.outcome") == (state, "cancelled")


class TestAccepted:
    def test_the_run_goes_on_without_its_worker(self, caller: Caller, server: Endpoint) -> None:
        server.behave = answer(202)
        run_id, error = caller.run()
        assert error is None
        state, session, forever = caller.of_run(run_id, "o.state, l.session_id, l.expires_at = 'infinity'")
        assert (state, session, forever) == ("RUNNING", UUID(int=0), True)

    def test_an_endpoint_that_promises_heartbeats_is_held_to_them(
        self, caller: Caller, server: Endpoint
    ) -> None:
        server.behave = answer(202)
        caller.point_at(server.url)
        caller.promise_heartbeats(60)
        run_id, _ = caller.run()
        seconds = caller.of_run(run_id, "extract(epoch FROM l.expires_at - clock_timestamp())")
        assert 50 < seconds <= 60

    def test_to_let_go_twice_is_the_same_as_once(self, caller: Caller, server: Endpoint) -> None:
        """A commit whose answer was lost is repeated."""
        server.behave = answer(202)
        run_id, _ = caller.run()
        ending = SimpleNamespace(
            run_id=run_id, due_at=caller.ledger.instant(1), fence=caller.of_run(run_id, "o.fence")
        )
        assert accepted.hand_over(caller.ledger.connection, [ending]) == {ending.fence}  # type: ignore[list-item]

    def test_an_end_that_comes_before_our_record_of_the_promise_stands(
        self, caller: Caller, server: Endpoint, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The endpoint knows the fence from the call, and may be faster than we are."""

        def end_at_once(request: Request, wire: Wire) -> None:
            caller.ledger.connection.execute(
                "WITH gone AS (DELETE FROM lease), ended AS (UPDATE attempt SET outcome = 'succeeded',"
                " finished_at = now()) UPDATE occurrence SET state = 'SUCCEEDED', finished_at = now()"
            )
            answer(202)(request, wire)

        server.behave = end_at_once
        run_id, _ = caller.run()
        assert caller.of_run(run_id, "o.state, o.late_writes_refused, l.run_id") == ("SUCCEEDED", 0, None)

    def test_a_promise_under_a_fence_that_the_sweep_has_ended_changes_nothing(
        self, caller: Caller, server: Endpoint
    ) -> None:
        def lose(request: Request, wire: Wire) -> None:
            caller.ledger.connection.execute(
                "WITH gone AS (DELETE FROM lease), ended AS (UPDATE attempt SET outcome = 'lost',"
                " finished_at = now()) UPDATE occurrence SET state = 'RETRY_WAIT'"
            )
            answer(202)(request, wire)

        server.behave = lose
        run_id, _ = caller.run()
        assert caller.of_run(run_id, "o.state, o.late_writes_refused, l.run_id") == ("RETRY_WAIT", 1, None)


class TestBounds:
    def test_an_endpoint_gets_its_share_and_what_does_not_fit_is_parked(self, caller: Caller) -> None:
        """Of eight slots four are for calls, and two of them for one endpoint."""
        runs = [caller.queue() for _ in range(6)]
        hosts = ["one", "one", "one", "two", "two", "three"]
        answers = [caller.claim(*run, host) for run, host in zip(runs, hosts, strict=True)]
        parked = [index for index, one in enumerate(answers) if one is Refusal.PARKED]
        assert parked == [2, 5]
        for index in parked:
            columns = "o.state, o.wait_reason, o.attempt_count, o.dispatch_at > clock_timestamp()"
            assert caller.of_run(runs[index][0], columns) == ("PENDING", "endpoint_busy", 0, True)
        agenda = "SELECT run_id, generation FROM outbox ORDER BY due_at"
        expected = [(runs[index][0], 2) for index in parked]
        assert caller.ledger.connection.execute(agenda).fetchall() == expected

    def test_a_call_that_has_ended_makes_room(self, caller: Caller) -> None:
        for _ in range(5):
            assert caller.of_run(caller.run()[0], "o.state") == "SUCCEEDED"

    def test_who_is_parked_again_waits_longer_up_to_a_bound(self, ledger: HandMadeLedger) -> None:
        waits = []
        for generation, attempts in [(1, 0), (2, 0), (3, 0), (2, 1), (40, 0)]:
            due_at = ledger.instant(len(waits) + 1)
            run_id = ledger.run(due_at, "QUEUED", generation=generation, attempt_count=attempts)
            park = accepted.Park(run_id=run_id, due_at=due_at, generation=generation, jitter=1.0)
            assert accepted.park(ledger.connection, [park, replace(park, generation=99)]) == 1
            seconds = (
                "SELECT extract(epoch FROM dispatch_at - clock_timestamp()) FROM occurrence WHERE id = %s"
            )
            (found,) = ledger.connection.execute(seconds, [run_id]).fetchone() or (0,)
            waits.append(round(found))
        assert waits == [1, 2, 4, 1, 15]

    def test_bounds_follow_the_pool(self) -> None:
        capacity = 1
        bounds = EndpointBounds(capacity=lambda: capacity, share=0.5)
        first = uuid4()
        assert bounds.enter(first, "one")
        assert not bounds.enter(uuid4(), "two")
        capacity = 4
        assert bounds.enter(uuid4(), "two")
        assert not bounds.enter(uuid4(), "three")
        bounds.leave(first)
        bounds.leave(first)
        assert bounds.enter(uuid4(), "three")


def judge(status: int, body: bytes = b"", *, unsafe: bool = False, cut: bool = False, **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return http_target.judged(
        Answer(status=status, headers=named, body=body, cut=cut), unsafe=unsafe, now=NOW
    )


@pytest.mark.parametrize(
    ("told", "after"),
    [
        ("7", 7),
        ("0", 0),
        ("999999999999", 3600),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90),
        (format_datetime(NOW - timedelta(days=1), usegmt=True), 0),
        (format_datetime(NOW + timedelta(days=1), usegmt=True), 3600),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_an_endpoint_may_say_when_to_come_again(status: int, told: str, after: float) -> None:
    with pytest.raises(RetryLater) as raised:
        judge(status, retry_after=told)
    assert raised.value.after == after


@pytest.mark.parametrize(
    "told",
    [
        "",
        "soon",
        "-5",
        "\N{ARABIC-INDIC DIGIT SEVEN}",
        "1e9",
        "Mon, 99 Foo 2026",
        "Fri, 31 Dec 99999999999999999999 23:59:59 GMT",
        "Fri, 31 Dec 2026 23:59:59 +99999999999999",
    ],
)
def test_what_is_no_time_leaves_it_to_the_retry_policy(told: str) -> None:
    with pytest.raises(FencepostError) as raised:
        judge(503, retry_after=told)
    assert not isinstance(raised.value, PermanentError | RetryLater)


@pytest.mark.parametrize(
    ("body", "cut", "kept"),
    [
        (b"", False, ""),
        (b"done", False, "done"),
        (b'{"rows": 3}', False, {"rows": 3}),
        (b'{"rows": 3}', True, '{"rows": 3}'),
        (b"a\x00b\xff", False, "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"),
        (b"[" * 60_000, False, "[" * 10_000),
    ],
)
def test_a_body_is_kept_as_far_as_it_can_be(body: bytes, cut: bool, kept: Any) -> None:
    assert judge(200, body, cut=cut) == {"status": 200, "body": kept}


@pytest.mark.parametrize("body", [b"NaN", b'"\\u0000"', b'"\\ud800"', json.dumps("x" * 65_500).encode()])
def test_a_body_that_cannot_be_stored_does_not_fail_the_run(body: bytes) -> None:
    assert "not_stored" in judge(200, body)["body"]


def test_nothing_is_expanded() -> None:
    assert "gzip" in judge(200, b"\x1f\x8b", content_encoding="gzip")["body"]["not_stored"]


def test_an_error_shows_the_beginning_of_what_was_said() -> None:
    with pytest.raises(PermanentError, match=r"422 Unprocessable.*: no such  \[31maccount") as raised:
        judge(422, b"no such\n\x1b[31maccount" + b"x" * 100_000)
    assert "\x1b" not in str(raised.value)
    assert len(str(raised.value)) < 600


class TestCredentials:
    def test_a_replaced_secret_signs_until_its_time_is_over(self) -> None:
        first, second, third = (new_signing_secret() for _ in range(3))
        one = Credentials(signing=(SigningSecret(text=first),))
        two = one.rotated(second, now=NOW, overlap=timedelta(hours=24))
        assert two.valid_at(NOW) == [second, first]
        assert two.valid_at(NOW + timedelta(hours=24)) == [second]
        three = two.rotated(third, now=NOW + timedelta(hours=12), overlap=timedelta(hours=24))
        assert three.valid_at(NOW + timedelta(hours=23)) == [third, second, first]
        assert three.valid_at(NOW + timedelta(hours=25)) == [third, second]
        assert two.rotated(third, now=NOW, overlap=timedelta()).valid_at(NOW) == [third]

    def test_both_signatures_verify(self, caller: Caller, server: Endpoint) -> None:
        fresh = new_signing_secret()
        credentials = Credentials(signing=(SigningSecret(text=SECRET),)).rotated(
            fresh, now=datetime.now(UTC), overlap=timedelta(hours=1)
        )
        caller.point_at(server.url, sealed=credentials.seal())
        caller.run()
        (request,) = server.requests
        for secret in (SECRET, fresh):
            Webhook(secret).verify(request.body, request.headers)

    def test_at_rest_and_in_print_there_is_nothing_to_read(self) -> None:
        one = Credentials(signing=(SigningSecret(text=SECRET),), headers={"X-Api-Key": CANARY})
        for text in (one.seal(), repr(one)):
            assert SECRET not in text
            assert CANARY not in text
        assert Credentials.open(one.seal()) == one

    def test_a_new_key_in_front_opens_what_the_old_one_sealed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from django.conf import settings

        def under(*keys: str) -> None:
            monkeypatch.setattr(settings, "FENCEPOST", replace(settings.FENCEPOST, secrets_keys=keys))

        one = Credentials(signing=(SigningSecret(text=SECRET),))
        under("o" * 32)
        token = one.seal()
        under("n" * 32, "o" * 32)
        assert Credentials.open(token) == one
        again = Credentials.open(token).seal()
        under("n" * 32)
        assert Credentials.open(again) == one
        with pytest.raises(FencepostError, match="sealed under a key"):
            Credentials.open(token)


def test_the_secrets_are_in_no_error_and_no_result(caller: Caller, server: Endpoint) -> None:
    """Not even where the endpoint sends back what it was sent."""
    sent = []

    def echo(request: Request, wire: Wire) -> None:
        sent.append(json.dumps(request.headers))
        answer(500 if len(sent) == 1 else 200, sent[-1].encode())(request, wire)

    server.behave = echo
    for _ in range(2):
        run_id, error = caller.run()
        told = json.dumps(caller.of_run(run_id, "o.error, o.result")) + repr(error)
        assert CANARY in sent[-1]
        assert "x-api-key" in told
        assert CANARY not in told
        assert SECRET not in told


def test_a_header_that_comes_back_as_json_is_masked_as_well() -> None:
    credentials = Credentials(signing=(), headers={"X-Api-Key": 'pa"ss\\word'})
    echoed = json.dumps(dict(credentials.headers)).encode()
    assert http_target._masked(echoed, credentials) == b'{"X-Api-Key": "***"}'
