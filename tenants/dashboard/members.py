"""Who sees a page: members of the request's tenant, by role."""

from collections.abc import Callable
from functools import wraps
from urllib.parse import urlsplit

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import add_never_cache_headers
from django_htmx.http import HttpResponseClientRedirect
from django_htmx.middleware import HtmxDetails

from scheduler.errors import NotFound
from tenants.access import allows
from tenants.models import Membership, Role, Tenant
from tenants.operations import Actor


class MemberRequest(HttpRequest):
    """A request as `members_only` lets it through; TenantMiddleware has set the two."""

    tenant: Tenant
    membership: Membership
    htmx: HtmxDetails


View = Callable[..., HttpResponse]


def members_only(role: Role = Role.VIEWER) -> Callable[[View], View]:
    """Strangers sign in first; a role that is too low is a 403; what the tenant does not have is a 404."""

    def decorate(view: View) -> View:
        @wraps(view)
        def guarded(request: MemberRequest, *args: object, **kwargs: object) -> HttpResponse:
            if not request.user.is_authenticated:
                return _to_sign_in(request)
            if request.membership is None:
                return render(request, "dashboard/no_tenant.html", status=403)
            if not allows(request.membership.role, role):
                raise PermissionDenied
            try:
                response = view(request, *args, **kwargs)
            except NotFound:
                raise Http404 from None
            add_never_cache_headers(response)  # who signs out leaves nothing behind
            return response

        return guarded

    return decorate


def actor_of(request: MemberRequest) -> Actor:
    return Actor(name=request.user.get_username(), address=request.META.get("REMOTE_ADDR", ""))


def _to_sign_in(request: MemberRequest) -> HttpResponse:
    """A fragment must not be answered by a redirect: htmx would put the sign-in page inside the page."""
    if request.htmx:
        page = urlsplit(request.htmx.current_url or "/").path
        return HttpResponseClientRedirect(redirect_to_login(page).url)
    return redirect_to_login(request.get_full_path() if request.method == "GET" else "/")
