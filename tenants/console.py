"""What the pages of the admin console share.

State is shown and never edited; it changes by operations, each confirmed by a person. Lists stay fast however
many rows there are: they count nothing, sort only as an index does, and select no more than a page.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from unfold.admin import ModelAdmin
from unfold.paginator import InfinitePaginator

from scheduler.errors import FencepostError
from tenants.operations import Actor


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What a person can have done to rows, after `question`. `apply` raises FencepostError to refuse."""

    label: str
    question: str
    apply: Callable[[Any, Actor], object]


class ConsoleAdmin(ModelAdmin):
    paginator = InfinitePaginator
    show_full_result_count = False
    list_disable_select_all = True
    list_per_page = 50
    sortable_by: Sequence[str] = ()
    compressed_fields = True

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def confirmed(self, request: HttpRequest, operation: Operation) -> HttpResponse:
        """An action on the rows that are ticked. They come by their ids, never by "all that match"."""
        return self._confirm(request, operation, request.POST.getlist(ACTION_CHECKBOX_NAME))

    def confirmed_one(self, request: HttpRequest, operation: Operation, object_id: str) -> HttpResponse:
        """The same from a row's own page: a link, so the first request is a GET and changes nothing."""
        return self._confirm(request, operation, [object_id])

    def _confirm(self, request: HttpRequest, operation: Operation, ids: Sequence[str]) -> HttpResponse:
        rows = [self._row_or_404(request, key) for key in ids[: self.list_per_page]]
        if request.method == "POST" and "confirmed" in request.POST:
            for row in rows:
                self._apply(request, operation, row)
            return redirect(self._back_to(rows))
        return self._ask(request, operation, rows)

    def _ask(self, request: HttpRequest, operation: Operation, rows: Sequence[Model]) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": operation.label,
            "opts": self.opts,
            "operation": operation,
            "rows": rows,
            "checkbox": ACTION_CHECKBOX_NAME,
            "action": request.POST.get("action", ""),
            "back": self._back_to(rows),
        }
        return TemplateResponse(request, "admin/confirm_operation.html", context)

    def _apply(self, request: HttpRequest, operation: Operation, row: Model) -> None:
        try:
            operation.apply(row, actor_of(request))
        except FencepostError as refused:
            messages.error(request, f"{operation.label}, {row}: {refused}")
        else:
            messages.success(request, f"{operation.label}, {row}: done.")

    def _row_or_404(self, request: HttpRequest, key: str) -> Model:
        row = self.get_object(request, key)
        if row is None:
            raise Http404
        return row

    def _back_to(self, rows: Sequence[Model]) -> str:
        base = f"admin:{self.opts.app_label}_{self.opts.model_name}"
        if len(rows) == 1:
            return redirect(f"{base}_change", rows[0].pk).url
        return redirect(f"{base}_changelist").url


class ReadOnlyAdmin(ConsoleAdmin):
    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def actor_of(request: HttpRequest) -> Actor:
    return Actor(name=request.user.get_username(), address=request.META.get("REMOTE_ADDR", ""))
