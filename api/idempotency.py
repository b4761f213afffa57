"""`Idempotency-Key`: one effect and one answer for a request that is sent more than once.

The key's row is inserted before anything is done, in the same transaction. Of twins that arrive at once, the
second waits at the unique constraint for the first to commit, and then finds its answer; if the first fails,
nothing of it remains, and the second takes its place. Refused requests are therefore not remembered.
"""

import hashlib
import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from django.db import transaction
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from api.authentication import access_of
from api.errors import Problem
from scheduler.errors import FieldError
from scheduler.orm import database_time
from tenants.access import scoped
from tenants.models import IdempotencyRecord

LIFETIME: Final = timedelta(hours=24)
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
_HEADERS: Final = ("Location", "ETag")


def answer_once(request: Request, perform: Callable[[], Response]) -> Response:
    """`perform`'s answer, or the first one to this key. Raises Problem 422 when the request is another."""
    key = key_of(request)
    if key is None:
        return perform()
    digest = _digest(request)
    with transaction.atomic():
        now = database_time()
        tenant = access_of(request).tenant
        records = scoped(IdempotencyRecord.objects.all(), tenant)
        records.filter(key=key, created_at__lt=now - LIFETIME).delete()
        record, is_first = records.get_or_create(
            tenant=tenant, key=key, defaults={"request_hash": digest, "status": 0, "created_at": now}
        )
        if not is_first:
            return _repeat(record, digest)
        response = perform()
        _remember(record, response)
        return response


def key_of(request: Request) -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is not None and not _KEY.fullmatch(key):
        error = FieldError(
            field="Idempotency-Key", code="invalid", detail="expected 1 to 255 printable ASCII characters."
        )
        raise Problem(400, f"Idempotency-Key: {error.detail}", errors=[error])
    return key


def _digest(request: Request) -> str:
    """Of what is asked for, not of its spelling: the order of members and blanks do not matter."""
    asked = json.dumps([request.method, request.path, request.data], sort_keys=True)
    return hashlib.sha256(asked.encode()).hexdigest()


def _repeat(record: IdempotencyRecord, digest: str) -> Response:
    if record.request_hash != digest:
        detail = "This Idempotency-Key was used for another request within the last 24 hours."
        raise Problem(422, detail, code="idempotency_key_reused")
    return Response(
        json.loads(str(record.body)),
        status=record.status,
        headers={**record.headers, "Idempotency-Replayed": "true"},
    )


def _remember(record: IdempotencyRecord, response: Response) -> None:
    record.status = response.status_code
    record.headers = {name: response[name] for name in _HEADERS if name in response}
    # As text: jsonb would put the members in an order of its own, and this must be the same answer again.
    record.body = JSONRenderer().render(response.data).decode()
    record.save(update_fields=["status", "headers", "body"])
