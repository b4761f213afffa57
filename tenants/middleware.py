"""Gives every page's request its tenant."""

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse

from tenants.access import membership_of


class TenantMiddleware:
    """Sets `request.membership` and `request.tenant`; both None for strangers and for members of nothing.

    API views find out by themselves who asks, inside their own handling of errors.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        # Django's way to hand a view what was found on the way to it; its types know no such name.
        request.membership = request.tenant = None  # type: ignore[attr-defined]
        return self.get_response(request)

    def process_view(
        self, request: HttpRequest, view: Callable[..., HttpResponse], args: Any, kwargs: Any
    ) -> None:
        if hasattr(view, "cls"):  # a view of REST framework
            return
        membership = membership_of(request)
        request.membership = membership  # type: ignore[attr-defined]
        request.tenant = membership.tenant if membership else None  # type: ignore[attr-defined]
