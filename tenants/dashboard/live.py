"""Parts of a page that keep themselves fresh."""

from hashlib import blake2b
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils.cache import patch_vary_headers

from tenants.dashboard.members import MemberRequest


def render_live(
    request: MemberRequest,
    page: str,
    part: str,
    context: dict[str, Any],
    *,
    every_s: int | None,
    update: str = "dashboard/_live.html",
) -> HttpResponse:
    """`page` with `part` in it, or for htmx only `update`, which is the part and what changes around it.

    htmx asks again every `every_s` seconds (None: no more), naming the digest of what it shows. The same
    again is answered by 204, which htmx leaves alone: an unchanged part costs neither focus nor scroll
    position. So the part holds no form, whose CSRF token would differ every time.
    """
    content = render_to_string(part, context, request)
    digest = blake2b(content.encode(), digest_size=8).hexdigest()
    if request.htmx and request.GET.get("seen") == digest and every_s is not None:
        return HttpResponse(status=204)
    template = update if request.htmx else page
    live = {"content": content, "digest": digest, "every_s": every_s, "path": _path_without_digest(request)}
    response = render(request, template, {**context, "live": live})
    patch_vary_headers(response, ["HX-Request"])
    return response


def _path_without_digest(request: MemberRequest) -> str:
    query = request.GET.copy()
    query.pop("seen", None)
    return f"{request.path}?{query.urlencode()}{'&' if query else ''}"
