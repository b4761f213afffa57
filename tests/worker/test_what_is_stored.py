"""What a job leaves behind is clear, bounded and without secrets, whatever the job throws or returns."""

import base64
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.states import State
from scheduler.worker.execution import ERROR_BYTES, Context, describe
from scheduler.worker.masking import masked
from tests.worker.test_execution import Ledger, held, raising, run

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEhunter2hunter2\nAbChunter2==\n-----END RSA PRIVATE KEY-----"
BASIC = base64.b64encode(b"bob:hunter2hunter2").decode()


@pytest.mark.parametrize(
    "text",
    [
        "password=hunter2",
        "password = hunter2",
        "PASSWORD: hunter2",
        "DB_PASSWORD=hunter2 failed",
        "passwd='hunter2 and more hunter2'",
        '{"password": "hunter2"}',
        '{"user": "bob", "client_secret":"hunter2 with blanks hunter2"}',
        "{'api_key': 'hunter2'}",
        r'"{\"token\": \"hunter2\"}"',
        '{"password": "hun\\"ter2hunter2"}',
        "passphrase => hunter2",
        "Authorization: Bearer hunter2",
        f"Authorization: Basic {BASIC}",
        "{'Authorization': 'Bearer hunter2.hunter2'}",
        "sent Bearer hunter2HUNTER2",
        f"sent Basic {BASIC} to it",
        "Cookie: sessionid=hunter2",
        "https://bob:hunter2@db/x",
        "postgres://bob:p@hunter2/hunter2@db:5432/x",
        "amqp://:hunter2@host//",
        "GET /x?access_token=hunter2&y=1",
        "https://s3/x?X-Amz-Signature=hunter2",
        "aws_secret_access_key = hunter2/hunter2+hunter2",
        KEY,
        KEY.replace("\n", "\\n"),
        KEY.split("-----END")[0],
        KEY.partition("-----\n")[2],
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str) -> None:
    shown = masked(f"before {text} after" if "BEGIN" in text or "END" not in text else text)
    assert "hunter2" not in shown.replace("***", "")
    assert BASIC not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "secret",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "xoxb-1234567890-abcdef",
        "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
        "fp_ab12cd34_0123456789abcdef0123",
    ],
)
def test_keys_of_a_known_form_are_masked_wherever_they_stand(secret: str) -> None:
    assert masked(f"it said {secret}, and no more") == "it said ***, and no more"


def test_values_of_the_environment_that_are_secrets_by_their_name_are_masked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PAYMENT_API_KEY", "correct horse battery")
    monkeypatch.setenv("SHORT_TOKEN", "abc")
    monkeypatch.setenv("REPORTS_URL", "https://bob:staple-staple@reports/")
    shown = masked("it was correct horse battery, abc, and staple-staple")
    assert shown == "it was ***, abc, and ***"


@pytest.mark.parametrize(
    "text",
    [
        "no route to host db:5432",
        "Basic authentication is off",
        "expected 3 columns, got 4",
        "see https://docs.example.com/a:b",
        "the passenger list is empty",
    ],
)
def test_an_ordinary_sentence_is_left_as_it_is(text: str) -> None:
    assert masked(text) == text


@pytest.mark.parametrize(
    "piece",
    ["a", "password", "password=", "://a:", "-----BEGIN PRIVATE KEY-----", '"', "eyJ-", "\\", "Basic "],
)
def test_a_hostile_text_costs_no_more_than_its_length(piece: str) -> None:
    """Quadratic work on so much text would take minutes."""
    began = time.monotonic()
    masked(piece * (65536 // len(piece)))
    assert time.monotonic() - began < 10


@given(st.text())
def test_any_text_can_be_masked(text: str) -> None:
    masked(text)


class Unreadable(Exception):
    def __str__(self) -> str:
        raise SystemExit("not even this")


class NoText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


def chained(length: int) -> BaseException:
    error: BaseException = RuntimeError("the first of all")
    for number in range(length):
        later = RuntimeError(f"number {number}")
        later.__context__ = error
        error = later
    return error


def circular() -> BaseException:
    first, second = RuntimeError("hen"), RuntimeError("egg")
    first.__cause__, second.__cause__ = second, first
    return first


def grouped() -> BaseException:
    error: Exception = ValueError("in the middle")
    for _ in range(50):
        error = ExceptionGroup("around", [error])
    return error


@pytest.mark.parametrize(
    "error",
    [
        Unreadable(),
        NoText(),
        RuntimeError("x" * 10_000_000),
        RuntimeError("\U0001f600" * 100_000),
        RuntimeError("a\x00b\ud800"),
        RuntimeError(object(), {1: {2: lambda: None}}),  # it cannot be pickled
        chained(2000),
        circular(),
        grouped(),
        type("X" * 5000, (Exception,), {})("a long name"),
        RecursionError("deep"),
    ],
    ids=lambda error: type(error).__name__[:20],
)
def test_any_exception_is_described_in_bounds(error: BaseException) -> None:
    described = describe(error)
    assert described["type"]
    assert described["message"]
    stored = json.dumps(described, ensure_ascii=False)
    assert "\\u0000" not in stored
    assert sum(len(text.encode()) for text in described.values()) <= ERROR_BYTES
    assert run(raising(error)).state is State.RETRY_WAIT


def test_a_secret_at_the_cut_is_not_shown_by_halves() -> None:
    text = "x" * (64 * 1024 - 20) + "password=hunter2hunter2hunter2" + "y" * 20_000
    assert "hunter2" not in json.dumps(describe(RuntimeError(text)))


class Hostile(dict[str, Any]):
    def items(self) -> Any:
        raise KeyError("not yours")


@pytest.mark.parametrize("result", ["\U0001f600", "a literal \\u0000", {"text": "\\ud83d"}, "\n\t"])
def test_a_result_of_any_characters_that_postgres_has_is_kept(result: Any) -> None:
    assert run(lambda ctx, kind: result).result == result


@pytest.mark.parametrize(
    "result",
    [Hostile(a=1), 10**5000, {(1, 2): 3}, "\\\x00"],
    ids=["raises", "too long a number", "no name", "NUL after a backslash"],
)
def test_a_result_that_cannot_even_be_looked_at_fails_no_run(result: Any) -> None:
    ending = run(lambda ctx, kind: result)
    assert (ending.state, list(ending.result)) == (State.SUCCEEDED, ["not_stored"])


@pytest.mark.parametrize(
    "report", [{"resume": {1, 2}}, {"resume": "x" * 70_000}, {"note": "\x00"}, {"percent": float("nan")}]
)
def test_progress_that_cannot_be_stored_is_the_jobs_error_and_says_why(report: dict[str, Any]) -> None:
    ledger = Ledger()
    with pytest.raises(ValueError, match="what is reported"):
        Context(held(), ledger).heartbeat(**report)
    assert ledger.progress == []
