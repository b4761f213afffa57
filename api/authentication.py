"""Who sends a request: an API key, or a member signed in to the dashboard. Both end in an `Access`."""

from typing import Any

from django.contrib.auth.models import User
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.request import Request

from scheduler.orm import database_time
from tenants import keys
from tenants.access import Access, membership_of
from tenants.operations import Actor


class KeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer fp_<prefix>_<secret>`."""

    def authenticate(self, request: Request) -> tuple[None, Access] | None:
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        now = database_time()
        key = keys.authenticate(text.strip(), now=now)
        if key is None:
            raise AuthenticationFailed("The API key is unknown, expired or revoked.")
        keys.note_use(key, now=now)
        return None, Access(tenant=key.tenant, role=key.role, actor_name=f"key {key.name} ({key.prefix})")

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="fencepost"'


class DashboardAuthentication(SessionAuthentication):
    """The dashboard's session; what changes something must carry the CSRF token."""

    def authenticate(self, request: Request) -> tuple[User, Access] | None:
        signed_in = super().authenticate(request)
        if signed_in is None:
            return None
        membership = membership_of(request._request)
        if membership is None:
            raise PermissionDenied("You are not a member of any tenant.")
        user: User = signed_in[0]
        return user, Access(tenant=membership.tenant, role=membership.role, actor_name=user.get_username())


def access_of(request: Request) -> Access:
    """Of a request that has passed `api.permissions.HasRole`."""
    access: Any = request.auth
    assert isinstance(access, Access)
    return access


def actor_of(request: Request) -> Actor:
    """For the audit log. The address is the peer's own: headers of proxies can be made up."""
    return Actor(name=access_of(request).actor_name, address=request.META.get("REMOTE_ADDR", ""))
