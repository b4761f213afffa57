"""Lists by keyset: a page begins behind a row, not after a number of rows, however the list grows."""

import base64
import binascii
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from django.db.models import Model, Q, QuerySet
from rest_framework.request import Request
from rest_framework.utils.urls import replace_query_param

from scheduler.errors import FieldError, ValidationFailed

PAGE_SIZE: Final = 50
MAX_PAGE_SIZE: Final = 200


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """Where a page begins: behind the row with this time and id, or before it when going back."""

    back: bool
    at: datetime
    id: UUID

    def text(self) -> str:
        document = json.dumps([self.back, self.at.isoformat(), str(self.id)])
        return base64.urlsafe_b64encode(document.encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        try:
            decoded = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            back, at, row_id = json.loads(decoded)
            moment = datetime.fromisoformat(at)
            if moment.tzinfo is None:
                raise ValueError("a time without its offset")
            return cls(back=bool(back), at=moment.astimezone(UTC), id=UUID(row_id))
        except (binascii.Error, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            raise _invalid("cursor", "use a link of an earlier answer, unchanged.") from None


@dataclass(frozen=True, kw_only=True)
class Page:
    rows: list[Any]
    previous: str | None
    next: str | None

    def answer(self, results: list[Any]) -> dict[str, Any]:
        return {"results": results, "next": self.next, "previous": self.previous}


def page(request: Request, rows: QuerySet[Any], *, by: str) -> Page:
    """The page of `rows` that the request asks for, the latest first by (`by`, id)."""
    size = page_size(request)
    text = request.query_params.get("cursor")
    cursor = Cursor.parse(text) if text else None
    back = cursor is not None and cursor.back
    order = (by, "id") if back else (f"-{by}", "-id")
    selected = rows.filter(_beyond(cursor, by)) if cursor else rows
    found = list(selected.order_by(*order)[: size + 1])
    more, found = len(found) > size, found[:size]
    if back:
        found.reverse()
    has_previous, has_next = (more, True) if back else (cursor is not None, more)
    return Page(
        rows=found,
        previous=_link(request, found[0], by, back=True) if found and has_previous else None,
        next=_link(request, found[-1], by, back=False) if found and has_next else None,
    )


def page_size(request: Request) -> int:
    text = request.query_params.get("page_size")
    if text is None:
        return PAGE_SIZE
    if not (text.isascii() and text.isdigit() and len(text) < 5 and 1 <= int(text) <= MAX_PAGE_SIZE):
        raise _invalid("page_size", f"expected a number from 1 to {MAX_PAGE_SIZE}.")
    return int(text)


def _beyond(cursor: Cursor, by: str) -> Q:
    """A bound on the first column that an index can use, less the rows of that instant already shown."""
    time, row = ("gte", "lte") if cursor.back else ("lte", "gte")
    return Q(**{f"{by}__{time}": cursor.at}) & ~Q(**{by: cursor.at, f"id__{row}": cursor.id})


def _link(request: Request, row: Model, by: str, *, back: bool) -> str:
    cursor = Cursor(back=back, at=getattr(row, by), id=row.pk)
    return replace_query_param(request.build_absolute_uri(), "cursor", cursor.text())


def _invalid(field: str, detail: str) -> ValidationFailed:
    return ValidationFailed(FieldError(field=field, code="invalid", detail=detail))
