"""Calendars: create, import, read, list, replace the days, delete."""

from typing import Any
from uuid import UUID

from django.urls import reverse
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from api.authentication import actor_of
from api.idempotency import answer_once
from api.pagination import page
from api.runs import PAGE_PARAMETERS
from api.schedules import IDEMPOTENCY_KEY, IF_MATCH, expected_revision, read_query
from api.views import TenantView, body_of, refuse_unknown
from scheduler import calendars, definitions, queries
from scheduler.models import Calendar
from tenants.models import Role

_DAYS_HELP = (
    'Dates as in "2026-12-25", and ranges as in {"from": "2026-12-24", "to": "2026-12-26"}, inclusive.'
)


class DaysBody(serializers.Serializer[Any]):
    """One of the two. For the schema; `scheduler.calendars` reads and judges it."""

    days = serializers.ListField(child=serializers.JSONField(), required=False, help_text=_DAYS_HELP)
    ics = serializers.CharField(
        required=False,
        help_text="The text of an iCalendar file. Recurring events are followed ten years ahead.",
    )


class CalendarBody(DaysBody):
    name = serializers.CharField(max_length=definitions.CALENDAR_NAME_LENGTH)


class CalendarSummary(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField(help_text='How `exclusions` name it: {"calendar": NAME}.')
    revision = serializers.IntegerField()
    entries = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class CalendarOutput(CalendarSummary):
    days = serializers.ListField(child=serializers.JSONField())
    used_by = serializers.ListField(
        child=serializers.CharField(), help_text="Names of the schedules that rest on its days."
    )


class FollowedOutput(serializers.Serializer[Any]):
    name = serializers.CharField()
    action = serializers.ChoiceField(choices=["edited", "unchanged"])


class CalendarEditOutput(CalendarOutput):
    schedules = FollowedOutput(many=True, help_text="Those that name it. `edited`: by a new revision.")


class CalendarPageOutput(serializers.Serializer[Any]):
    results = CalendarSummary(many=True)
    next = serializers.URLField(allow_null=True)
    previous = serializers.URLField(allow_null=True)


class CalendarQuery(serializers.Serializer[Any]):
    cursor = serializers.CharField(required=False)
    page_size = serializers.CharField(required=False)


def summary(calendar: Calendar) -> dict[str, Any]:
    return {
        "id": str(calendar.id),
        "name": calendar.name,
        "revision": calendar.revision,
        "entries": len(calendar.days),
        "created_at": definitions.rfc3339(calendar.created_at),
        "updated_at": definitions.rfc3339(calendar.updated_at),
    }


def answer(calendar: Calendar, *, status: int = 200, **more: Any) -> Response:
    used_by = queries.names_of_schedules_naming(calendar)
    body = {**summary(calendar), "days": calendar.days, "used_by": used_by, **more}
    return Response(body, status=status, headers={"ETag": f'"{calendar.revision}"'})


class Calendars(TenantView):
    roles = {"GET": Role.VIEWER, "POST": Role.EDITOR}

    @extend_schema(operation_id="list_calendars", parameters=PAGE_PARAMETERS, responses=CalendarPageOutput)
    def get(self, request: Request) -> Response:
        """The tenant's calendars without their days, the newest first."""
        read_query(CalendarQuery, request)
        found = page(request, queries.calendars(self.tenant), by="created_at")
        return Response(found.answer([summary(calendar) for calendar in found.rows]))

    @extend_schema(
        operation_id="create_calendar",
        parameters=[IDEMPOTENCY_KEY],
        request=CalendarBody,
        responses={201: CalendarOutput},
    )
    def post(self, request: Request) -> Response:
        """Make a calendar from days, or from an iCalendar file."""
        return answer_once(request, lambda: self._create(request))

    def _create(self, request: Request) -> Response:
        body = body_of(request)
        refuse_unknown(body, ("name", "days", "ics"))
        calendar = calendars.create_calendar(
            self.tenant,
            body.get("name"),
            days=body.get("days"),
            ics=body.get("ics"),
            actor=actor_of(request),
        )
        response = answer(calendar, status=201)
        response["Location"] = reverse("calendar", args=[calendar.id])
        return response


class OneCalendar(TenantView):
    """Found, or a 404, before anything else of the request is looked at."""

    roles = {"GET": Role.VIEWER, "PATCH": Role.EDITOR, "DELETE": Role.EDITOR}
    calendar: Calendar

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        self.calendar = queries.calendar(self.tenant, kwargs["calendar_id"])

    @extend_schema(operation_id="read_calendar", responses=CalendarOutput)
    def get(self, request: Request, calendar_id: UUID) -> Response:
        """One calendar; its ETag is its revision."""
        return answer(self.calendar)

    @extend_schema(
        operation_id="edit_calendar", parameters=[IF_MATCH], request=DaysBody, responses=CalendarEditOutput
    )
    def patch(self, request: Request, calendar_id: UUID) -> Response:
        """Replace the days. Schedules that name the calendar get a new revision, or else nothing is done:
        their future moves by the new days, their past does not. The name stays, for they go by it.
        """
        body = body_of(request)
        refuse_unknown(body, ("days", "ics"))
        done = calendars.edit_calendar(
            self.tenant,
            calendar_id,
            days=body.get("days"),
            ics=body.get("ics"),
            expected_revision=expected_revision(request),
            actor=actor_of(request),
        )
        followed = [{"name": change.name, "action": change.action} for change in done.schedules]
        return answer(done.calendar, schedules=followed)

    @extend_schema(operation_id="delete_calendar", responses={204: None})
    def delete(self, request: Request, calendar_id: UUID) -> Response:
        """Refused with 409 `calendar_in_use` and their names while schedules name it."""
        calendars.delete_calendar(self.tenant, calendar_id, actor=actor_of(request))
        return Response(status=204)
