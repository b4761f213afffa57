"""Roles, checked for each call before anything is looked up."""

from typing import Any

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from tenants.access import Access
from tenants.models import Role


class HasRole(BasePermission):
    """A view says in `roles` which role each of its methods takes; a method it does not name is refused."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if not isinstance(request.auth, Access):
            return False  # REST framework answers 401 when nobody was authenticated
        method = "GET" if request.method == "HEAD" else request.method
        needed: Role | None = view.roles.get(method)
        if needed is None:
            return method not in view.allowed_methods  # let it come to the 405
        self.message = f"This takes the role '{needed}'; yours is '{request.auth.role}'."
        return request.auth.allows(needed)
