"""One attempt at a run of an HTTP target: one POST, and what its answer means.

2xx is success and 202 a promise: the endpoint will end the run itself (store/accepted.sql). 408, 425, 429 and
5xx are tried again, as is everything that is no answer; other 4xx and every redirect are final. Of an unsafe
effect only what left nothing sent, and a clear refusal, are known not to have happened.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from http import HTTPStatus
from threading import Event
from typing import Any, Final
from urllib.parse import quote

from django.conf import settings
from standardwebhooks import Webhook

from scheduler.core.retry import UNSAFE
from scheduler.credentials import Credentials, Unreadable
from scheduler.errors import FencepostError, NotStarted, PermanentError, RetryLater
from scheduler.faultpoints import fault_point
from scheduler.store.claims import Claimed
from scheduler.topology import HTTP_TASK
from scheduler.worker.execution import ACCEPTED, RESULT_BYTES, Context, storable
from scheduler.worker.outbound import Answer, Client, Denied, NoAnswer, NotSent
from scheduler.worker.registry import JobSpec

MOST_RETRY_AFTER_S: Final = 3600.0
TEXT_LENGTH: Final = 10_000
_TRANSIENT: Final = frozenset({408, 425, 429})
_TELLS_WHEN: Final = frozenset({429, 503})


class NotAnswered(FencepostError):
    """The request was sent, and what came back says neither that it was done nor that it was not."""


def call(ctx: Context, /, **payload: Any) -> Any:
    """What the job of an HTTP target does. Returns the answer as it is kept, or ACCEPTED."""
    held = ctx._held  # as close to its lease as the worker itself
    claimed = held.claimed
    body = json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()
    credentials = _credentials(claimed)
    headers = {**credentials.headers, **_own_headers(ctx, claimed), **_signed(claimed, credentials, body)}
    begun = Event()
    try:
        held.check_before_beginning()
        answer = _client().post(
            claimed.url,
            headers,
            body,
            timeout_s=claimed.timeout_s,
            check=held.check,
            begins=begun.set,
            sent=lambda: fault_point("http.after_send"),
        )
    except Denied as error:
        raise _final(claimed)(str(error)) from None
    except NotSent as error:
        raise NotStarted(str(error)) from None
    except NoAnswer as error:
        raise NotAnswered(str(error)) from None
    except FencepostError as error:  # no longer wanted, by `held.check`
        if claimed.side_effects == UNSAFE and not begun.is_set():
            raise NotStarted(f"{error}; nothing was sent") from None
        raise
    answer = replace(answer, body=_masked(answer.body, credentials))
    return judged(answer, unsafe=claimed.side_effects == UNSAFE, now=datetime.now(UTC))


SPEC: Final = JobSpec(
    name=HTTP_TASK,
    function=call,
    retry=None,
    timeout_s=None,
    side_effects="idempotent",
    parameters={},
    description="Calls the endpoint of an HTTP target.",
)


def judged(answer: Answer, *, unsafe: bool, now: datetime) -> Any:
    """What follows from an answer; `now` for a Retry-After that names a date. Raises what is no success."""
    status = answer.status
    if status == HTTPStatus.ACCEPTED:
        return ACCEPTED
    if 200 <= status < 300:
        return {"status": status, "body": _kept(answer)}
    told = f"The endpoint answered {status}{_phrase(status)}{_excerpt(answer)}"
    if status < 400:
        detail = f"{told}; it is called at the address on record only, no redirect is followed."
        # 303 is how a form says that it is done: of an unsafe effect this is no clear answer.
        raise NotAnswered(detail) if unsafe else PermanentError(detail)
    if unsafe and status < 500:
        raise PermanentError(told)
    if status in _TELLS_WHEN and (after := retry_after_s(answer.headers, now)) is not None:
        raise RetryLater(told, after=after)
    if status in _TRANSIENT or status >= 500:
        raise NotAnswered(told)
    raise PermanentError(told)


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds, from a number of them or from a date, at most an hour; None where there is neither."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), MOST_RETRY_AFTER_S)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # a year or a zone of twenty digits overflows
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return min(max(0.0, (at - now).total_seconds()), MOST_RETRY_AFTER_S)


def _final(claimed: Claimed) -> type[FencepostError]:
    """To call it again would change nothing; of an unsafe effect it is known that nothing happened."""
    return NotStarted if claimed.side_effects == UNSAFE else PermanentError


def _credentials(claimed: Claimed) -> Credentials:
    if not claimed.url or not claimed.enabled:
        raise _final(claimed)(f"The target '{claimed.target}' is switched off; nothing was sent.")
    try:
        return Credentials.open(claimed.sealed)
    except Unreadable as error:
        raise NotStarted(str(error)) from None


def _masked(body: bytes, credentials: Credentials) -> bytes:
    """Endpoints that send back what they were sent would put secrets into results that every viewer reads."""
    for value in credentials.headers.values():
        in_json = json.dumps(value)[1:-1]  # quotes and backslashes come back escaped
        for text in (value, in_json):
            body = body.replace(text.encode("latin-1"), b"***")
    return body


def _own_headers(ctx: Context, claimed: Claimed) -> dict[str, str]:
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "Fencepost",
        "Idempotency-Key": ctx.idempotency_key,
        "X-Fencepost-Run": str(claimed.run_id),
        "X-Fencepost-Attempt": str(claimed.attempt),
        "X-Fencepost-Fence": str(claimed.fence),
        "X-Fencepost-Due-At": claimed.due_at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        # The trace that the attempt has on record.
        "traceparent": f"00-{claimed.claim_id.hex}-{claimed.fence:016x}-01",
    }
    if claimed.payload_ref is not None:
        headers["X-Fencepost-Payload-Ref"] = quote(claimed.payload_ref, safe="!#$&'()*+,/:;=?@[]%")
    if claimed.resume is not None:
        headers["X-Fencepost-Resume"] = json.dumps(claimed.resume, separators=(",", ":"))
    return headers


def _signed(claimed: Claimed, credentials: Credentials, body: bytes) -> dict[str, str]:
    """By every secret in force; after a rotation there are two. The id is that of the run: stable per run."""
    now = datetime.now(UTC)
    signatures = [
        Webhook(secret).sign(str(claimed.run_id), now, body.decode()) for secret in credentials.valid_at(now)
    ]
    return {
        "webhook-id": str(claimed.run_id),
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


def _kept(answer: Answer) -> Any:
    """The body as JSON where it is that, else the beginning of its text."""
    encoding = answer.headers.get("content-encoding", "identity")
    if encoding != "identity":
        return {"not_stored": f"the body is encoded as {encoding[:40]!r}, and none was asked for"}
    if not answer.cut:
        try:
            return storable(json.loads(answer.body), limit=RESULT_BYTES - 1024)
        except (ValueError, RecursionError):
            pass
    return _text(answer.body)[:TEXT_LENGTH]


def _excerpt(answer: Answer) -> str:
    text = "".join(c if c.isprintable() else " " for c in _text(answer.body[:2000])).strip()
    return f": {text[:500]}" if text else ""


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")


def _phrase(status: int) -> str:
    try:
        return f" {HTTPStatus(status).phrase}"
    except ValueError:
        return ""


@cache
def _client() -> Client:
    return Client(allowed=settings.FENCEPOST.http_allow_networks)
