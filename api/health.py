"""Liveness and readiness, for load balancers and deploy gates. Neither asks who wants to know."""

from dataclasses import asdict

from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from scheduler import checks


@never_cache
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """The process answers. It looks at nothing else, so that no outage elsewhere restarts it."""
    return JsonResponse({"ok": True})


@never_cache
@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """Whether what is accepted here will be worked on: 503 when not."""
    readiness = checks.readiness()
    return JsonResponse(asdict(readiness), status=200 if readiness.ok else 503)
