"""Runs: lists, one run with its attempts; cancelling, redriving, dismissing and reconciling."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django_filters import FilterSet
from django_filters.fields import IsoDateTimeField
from django_filters.rest_framework import (
    BooleanFilter,
    CharFilter,
    IsoDateTimeFilter,
    MultipleChoiceFilter,
    UUIDFilter,
)
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from api.authentication import actor_of
from api.pagination import MAX_PAGE_SIZE, page
from api.views import RunView, ScheduleView, TenantView, body_of, read_body, refuse_unknown
from scheduler import operations, queries
from scheduler.core.states import State
from scheduler.definitions import rfc3339
from scheduler.errors import FieldError, ValidationFailed
from scheduler.models import Attempt, Occurrence
from tenants.models import Role

# Input --------------------------------------------------------------------------------------------


class InstantField(IsoDateTimeField):
    def to_python(self, value: Any) -> datetime | None:
        """In UTC: at the ends of the calendar an offset can lead to a year that Postgres does not read."""
        instant: datetime | None = super().to_python(value)
        try:
            return instant and instant.astimezone(UTC)
        except OverflowError:
            raise ValidationError("The time lies outside the calendar.", code="overflow") from None


class InstantFilter(IsoDateTimeFilter):
    field_class = InstantField


class RunFilter(FilterSet):
    """What a list of runs may be narrowed by."""

    state = MultipleChoiceFilter(choices=[(state.value, state.value) for state in State])
    due_after = InstantFilter()
    due_before = InstantFilter()
    schedule = UUIDFilter()
    target = CharFilter()
    tag = CharFilter()
    dismissed = BooleanFilter()

    class Meta:
        model = Occurrence
        fields: list[str] = []


PAGE_PARAMETERS = [
    OpenApiParameter("cursor", str, description="From a link of an earlier answer."),
    OpenApiParameter("page_size", int, description=f"1 to {MAX_PAGE_SIZE}; 50 by default."),
]

RUN_PARAMETERS = [
    OpenApiParameter("state", str, enum=[state.value for state in State], many=True),
    OpenApiParameter("due_after", OpenApiTypes.DATETIME, description="Inclusive."),
    OpenApiParameter("due_before", OpenApiTypes.DATETIME, description="Inclusive."),
    OpenApiParameter("target", str),
    OpenApiParameter("tag", str),
    OpenApiParameter("dismissed", bool, description="Whether a person has dismissed it."),
    *PAGE_PARAMETERS,
]


def filters_of(request: Request) -> dict[str, Any]:
    """The filters as arguments of `queries.runs`. Raises ValidationFailed."""
    refuse_unknown(request.query_params, {*RunFilter.base_filters, "cursor", "page_size"})
    form = RunFilter(request.query_params).form
    if not form.is_valid():
        raise ValidationFailed(
            *(
                FieldError(field=name, code=fault["code"] or "invalid", detail=fault["message"])
                for name, faults in form.errors.get_json_data().items()
                for fault in faults
            )
        )
    given = {name: value for name, value in form.cleaned_data.items() if value not in (None, "", [])}
    renamed = {"state": "states", "schedule": "schedule_id"}
    return {renamed.get(name, name): value for name, value in given.items()}


# Output -------------------------------------------------------------------------------------------


class RunOutput(serializers.Serializer[Occurrence]):
    """12-names.md, "Answers"."""

    id = serializers.UUIDField()
    schedule = serializers.UUIDField(source="schedule_id")
    revision = serializers.IntegerField()
    origin = serializers.CharField()
    due_at = serializers.DateTimeField()
    dispatch_at = serializers.DateTimeField()
    state = serializers.ChoiceField(choices=[state.value for state in State])
    reason = serializers.SerializerMethodField()
    attempt_count = serializers.IntegerField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    dismissed_at = serializers.DateTimeField(allow_null=True)
    reconciled_at = serializers.DateTimeField(allow_null=True)
    cancel_requested_at = serializers.DateTimeField(allow_null=True)
    progress = serializers.JSONField(allow_null=True)
    coalesced = serializers.IntegerField()
    coalesced_from = serializers.DateTimeField(allow_null=True)
    overdue = serializers.BooleanField()
    target = serializers.CharField(source="target_name")

    def get_reason(self, run: Occurrence) -> str | None:
        """Why it waits, why it was skipped, or why it is a dead letter."""
        return run.wait_reason or run.skip_reason or run.dead_letter_reason


class AttemptOutput(serializers.Serializer[Attempt]):
    number = serializers.IntegerField()
    fence = serializers.IntegerField()
    worker = serializers.CharField()
    started_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
    outcome = serializers.CharField(allow_null=True)
    error = serializers.JSONField(allow_null=True)
    trace_id = serializers.CharField(allow_null=True)


class TimelineEntry(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    event = serializers.CharField()
    attempt = serializers.IntegerField(required=False)


class RunDetailOutput(RunOutput):
    result = serializers.JSONField(allow_null=True)
    error = serializers.JSONField(allow_null=True)
    attempts = serializers.SerializerMethodField()
    timeline = serializers.SerializerMethodField()
    why = serializers.SerializerMethodField()
    late_writes_refused = serializers.IntegerField()

    @extend_schema_field(AttemptOutput(many=True))
    def get_attempts(self, run: Occurrence) -> Any:
        return [AttemptOutput(attempt).data for attempt in queries.attempts(run)]

    @extend_schema_field(TimelineEntry(many=True))
    def get_timeline(self, run: Occurrence) -> list[dict[str, Any]]:
        return timeline(run, queries.attempts(run))

    def get_why(self, run: Occurrence) -> str:
        """One sentence: why the run is where it is."""
        return queries.why(run)


class RunPageOutput(serializers.Serializer[Any]):
    results = RunOutput(many=True)
    next = serializers.URLField(allow_null=True)
    previous = serializers.URLField(allow_null=True)


def timeline(run: Occurrence, attempts: list[Attempt]) -> list[dict[str, Any]]:
    """What happened to the run, in order of time."""
    moments: list[tuple[Any, str, dict[str, int]]] = [
        (run.created_at, "recorded", {}),
        (run.queued_at, "released", {}),
        (run.cancel_requested_at, "cancel requested", {}),
    ]
    for attempt in attempts:
        number = {"attempt": attempt.number}
        moments.append((attempt.started_at, "attempt started", number))
        moments.append((attempt.finished_at, f"attempt {attempt.outcome}", number))
    moments.append((run.finished_at, run.state.lower(), {}))
    told = sorted((moment for moment in moments if moment[0]), key=lambda moment: moment[0])
    return [{"at": rfc3339(at), "event": event, **more} for at, event, more in told]


# Views --------------------------------------------------------------------------------------------


class Runs(TenantView):
    roles = {"GET": Role.VIEWER}

    @extend_schema(
        operation_id="list_runs",
        parameters=[OpenApiParameter("schedule", OpenApiTypes.UUID), *RUN_PARAMETERS],
        responses=RunPageOutput,
    )
    def get(self, request: Request) -> Response:
        """The tenant's runs, the latest due first."""
        found = page(request, queries.runs(self.tenant, **filters_of(request)), by="due_at")
        return Response(found.answer([RunOutput(run).data for run in found.rows]))


class ScheduleRuns(ScheduleView):
    roles = {"GET": Role.VIEWER}

    @extend_schema(operation_id="list_runs_of_schedule", parameters=RUN_PARAMETERS, responses=RunPageOutput)
    def get(self, request: Request, schedule_id: UUID) -> Response:
        """The schedule's runs, the latest due first."""
        filters = {**filters_of(request), "schedule_id": schedule_id}
        found = page(request, queries.runs(self.tenant, **filters), by="due_at")
        return Response(found.answer([RunOutput(run).data for run in found.rows]))


class Run(RunView):
    roles = {"GET": Role.VIEWER}

    @extend_schema(operation_id="read_run", responses=RunDetailOutput)
    def get(self, request: Request, run_id: UUID) -> Response:
        """One run with its attempts, and why it is where it is."""
        return Response(RunDetailOutput(self.run).data)


class RunCancel(RunView):
    roles = {"POST": Role.OPERATOR}

    @extend_schema(operation_id="cancel_run", request=None, responses={202: RunDetailOutput})
    def post(self, request: Request, run_id: UUID) -> Response:
        """Cancel a run that waits, ask one that runs to stop; 409 with the state when it is over."""
        refuse_unknown(body_of(request), ())
        operations.cancel_run(self.tenant, run_id, actor=actor_of(request))
        return Response(RunDetailOutput(queries.run(self.tenant, run_id)).data, status=202)


class RunRedrive(RunView):
    roles = {"POST": Role.OPERATOR}

    @extend_schema(operation_id="redrive_run", request=None, responses={202: RunDetailOutput})
    def post(self, request: Request, run_id: UUID) -> Response:
        """Have a run that failed for good tried again, with the same idempotency key and a fresh budget of
        attempts; 409 with the state when it did not fail."""
        refuse_unknown(body_of(request), ())
        operations.redrive_run(self.tenant, run_id, actor=actor_of(request))
        return Response(RunDetailOutput(queries.run(self.tenant, run_id)).data, status=202)


class ReconcileBody(serializers.Serializer[Any]):
    outcome = serializers.ChoiceField(["succeeded", "failed", "retry"])
    note = serializers.CharField(default="", allow_blank=True, max_length=2000)


class RunReconcile(RunView):
    roles = {"POST": Role.OPERATOR}

    @extend_schema(operation_id="reconcile_run", request=ReconcileBody, responses={202: RunDetailOutput})
    def post(self, request: Request, run_id: UUID) -> Response:
        """Say how a run of unknown outcome ended, or have it tried again; 409 with the state when its outcome
        is not unknown. The note goes into the audit log."""
        body = read_body(ReconcileBody, request)
        operations.reconcile_run(self.tenant, run_id, **body, actor=actor_of(request))
        return Response(RunDetailOutput(queries.run(self.tenant, run_id)).data, status=202)


class RunDismiss(RunView):
    roles = {"POST": Role.OPERATOR}

    @extend_schema(operation_id="dismiss_run", request=None, responses={202: RunDetailOutput})
    def post(self, request: Request, run_id: UUID) -> Response:
        """Take a run that failed for good off the list of what needs attention; 409 with the state when it
        did not fail. Dismissed already: the same answer."""
        refuse_unknown(body_of(request), ())
        operations.dismiss_run(self.tenant, run_id, actor=actor_of(request))
        return Response(RunDetailOutput(queries.run(self.tenant, run_id)).data, status=202)
