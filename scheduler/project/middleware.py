"""Response policy that depends on which part of the site answers."""

from collections.abc import Callable

from csp.constants import SELF, UNSAFE_EVAL, UNSAFE_INLINE
from django.http import HttpRequest, HttpResponse

_CONSOLE_POLICY = {
    "script-src": [SELF, UNSAFE_EVAL],  # Alpine compiles the expressions in unfold's attributes
    "style-src": [SELF, UNSAFE_INLINE],  # unfold writes style attributes
}


class ConsolePolicyMiddleware:
    """Loosens the content security policy for the admin console alone."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if request.path.startswith("/admin/"):
            vars(response)["_csp_update"] = _CONSOLE_POLICY
        return response
