"""Every error as an RFC 9457 problem document: one table of kinds, one translation of exceptions."""

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

import psycopg
from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from rest_framework import exceptions
from rest_framework.request import Request
from rest_framework.response import Response

from scheduler.errors import (
    Conflict,
    FencepostError,
    FieldError,
    InUse,
    NotFound,
    StaleRevision,
    TriggerError,
    ValidationFailed,
)
from scheduler.store.statements import DATABASE_AWAY

log = logging.getLogger(__name__)

CONTENT_TYPE: Final = "application/problem+json"

# status: (code, title). A problem may carry a more exact code, such as `idempotency_key_reused`.
KINDS: Final = {
    400: ("validation", "The request is not valid"),
    401: ("not_authenticated", "Who are you?"),
    403: ("forbidden", "Your role does not allow this"),
    404: ("not_found", "There is no such thing"),
    405: ("method_not_allowed", "This cannot be done here"),
    406: ("not_acceptable", "The answer cannot be given in that form"),
    409: ("conflict", "The present state does not allow this"),
    412: ("stale_revision", "Somebody else has edited it meanwhile"),
    413: ("too_large", "The body is too large"),
    415: ("unsupported_media_type", "The body must be JSON"),
    422: ("unprocessable", "The request contradicts an earlier one"),
    428: ("precondition_required", "The request must say which revision it edits"),
    429: ("throttled", "Too many requests"),
    500: ("internal", "Something went wrong on our side"),
    503: ("unavailable", "Temporarily unavailable"),
}

RETRY_AFTER_S: Final = 2


class Problem(exceptions.APIException):
    """An error of the HTTP exchange itself: headers, media types, sizes."""

    def __init__(
        self, status: int, detail: str, *, code: str | None = None, errors: Iterable[FieldError] = ()
    ) -> None:
        super().__init__(detail)
        self.status_code = status
        self.problem_code = code
        self.text = detail
        self.errors = tuple(errors)


def document(
    status: int,
    detail: str,
    *,
    code: str | None = None,
    errors: Iterable[FieldError] = (),
    request_id: str = "",
    **extensions: Any,
) -> dict[str, Any]:
    general, title = KINDS.get(status, KINDS[500 if status >= 500 else 400])
    listed = [{"field": error.field, "code": error.code, "detail": error.detail} for error in errors]
    return {
        "type": f"https://fencepost.dev/problems/{code or general}",
        "title": title,
        "status": status,
        "code": code or general,
        "detail": detail,
        **({"errors": listed} if listed else {}),
        **extensions,
        "request_id": request_id,
    }


def answer(error: Exception, context: Mapping[str, Any]) -> Response:
    """REST framework's exception handler."""
    request: Request = context["request"]
    response = _translate(error, getattr(request, "request_id", ""))
    response.content_type = CONTENT_TYPE
    return response


def _translate(error: Exception, request_id: str) -> Response:
    match error:
        case FencepostError():
            return _domain_error(error, request_id)
        case exceptions.APIException():
            return _exchange_error(error, request_id)
        case Http404():
            return _response(404, "There is nothing at this address.", request_id)
        case PermissionDenied():
            return _response(403, "You may not do this.", request_id)
    if _database_is_away(error):
        log.warning("request %s: the database did not answer", request_id, exc_info=error)
        response = _response(503, "The database does not answer at the moment.", request_id)
        response["Retry-After"] = str(RETRY_AFTER_S)
        return response
    return _unexpected(error, request_id)


def _database_is_away(error: Exception) -> bool:
    """Raised by Django's connection, which keeps psycopg's error as the cause, or by our own SQL."""
    away = (OperationalError, InterfaceError, psycopg.InterfaceError, *DATABASE_AWAY)
    return isinstance(error, away) or isinstance(error.__cause__, DATABASE_AWAY)


def _domain_error(error: FencepostError, request_id: str) -> Response:
    match error:
        case ValidationFailed():
            return _response(400, str(error), request_id, errors=error.errors)
        case TriggerError():  # a stored trigger that can no longer be read
            fault = FieldError(field=error.field, code=error.code, detail=error.detail)
            return _response(400, str(error), request_id, errors=[fault])
        case StaleRevision():
            response = _response(412, str(error), request_id, code=error.code, revision=error.current)
            response["ETag"] = f'"{error.current}"'
            return response
        case InUse():
            return _response(409, str(error), request_id, code=error.code, used_by=error.used_by)
        case Conflict():
            extensions = {"state": error.state} if error.state else {}
            return _response(409, str(error), request_id, code=error.code, **extensions)
        case NotFound():
            return _response(404, str(error), request_id)
    return _unexpected(error, request_id)


def _unexpected(error: Exception, request_id: str) -> Response:
    log.error("request %s failed", request_id, exc_info=error)
    return _response(500, "The error is in our log under this request id.", request_id)


def _exchange_error(error: exceptions.APIException, request_id: str) -> Response:
    if isinstance(error, Problem):
        more = {"code": error.problem_code, "errors": error.errors}
        return _response(error.status_code, error.text, request_id, **more)
    if isinstance(error, exceptions.ValidationError):
        errors = list(_field_errors(error.get_full_details()))
        detail = "; ".join(f"{fault.field}: {fault.detail}" for fault in errors)
        return _response(400, detail, request_id, errors=errors)
    code = "malformed_json" if isinstance(error, exceptions.ParseError) else None
    response = _response(error.status_code, str(error.detail), request_id, code=code)
    challenge: str | None = getattr(error, "auth_header", None)
    if challenge:
        response["WWW-Authenticate"] = challenge
    return response


def _response(status: int, detail: str, request_id: str, **more: Any) -> Response:
    return Response(document(status, detail, request_id=request_id, **more), status=status)


def _field_errors(details: Any, place: str = "") -> Iterable[FieldError]:
    """REST framework's nested details as a flat list with dotted paths."""
    if isinstance(details, dict) and set(details) == {"message", "code"}:
        yield FieldError(field=place or "body", code=details["code"], detail=str(details["message"]))
    elif isinstance(details, dict):
        for name, inner in details.items():
            path = place if name == "non_field_errors" else f"{place}.{name}".strip(".")
            yield from _field_errors(inner, path)
    else:
        for inner in details:
            yield from _field_errors(inner, place)


def outside_views(request: HttpRequest, response: HttpResponse, request_id: str) -> HttpResponse:
    """The problem document for an error that no API view answered: an unknown path, a refused host."""
    texts = {404: "There is nothing at this address.", 400: "The request cannot be understood."}
    detail = texts.get(response.status_code, "The request was not carried out.")
    body = json.dumps(document(response.status_code, detail, request_id=request_id))
    return HttpResponse(body, status=response.status_code, content_type=CONTENT_TYPE)
