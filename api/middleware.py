"""Gives every request an id, and every error under /api/ the form of one."""

import re
from collections.abc import Callable
from uuid import uuid4

from django.http import HttpRequest, HttpResponse

from api import errors

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestIdMiddleware:
    """Echoes `X-Request-ID` where it is harmless in a log line and a header, else makes one."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        given = request.headers.get("X-Request-ID", "")
        request_id = given if _ID.fullmatch(given) else uuid4().hex
        # Django's way to hand a view what was found on the way to it; its types know no such name.
        request.request_id = request_id  # type: ignore[attr-defined]
        response = self.get_response(request)
        if _escaped(request, response):
            response = errors.outside_views(request, response, request_id)
        response["X-Request-ID"] = request_id
        return response


def _escaped(request: HttpRequest, response: HttpResponse) -> bool:
    is_error = response.status_code >= 400 and request.path.startswith("/api/")
    return is_error and response.get("Content-Type") != errors.CONTENT_TYPE
