"""Schedules: create, read, list, edit, cancel, pause, resume, trigger, preview."""

import re
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4, uuid5

from django.urls import reverse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from api.authentication import actor_of
from api.errors import Problem
from api.idempotency import answer_once, key_of
from api.instants import InstantOutput, PreviewOutput, PreviewQuery, shown
from api.pagination import page
from api.runs import PAGE_PARAMETERS, RunOutput
from api.views import ScheduleView, TenantView, body_of, read_body, validated
from scheduler import definitions, operations, queries
from scheduler.backfill import Backfill, backfill_schedule
from scheduler.explain import Explanation, explain
from scheduler.models import Overlap, Schedule, ScheduleState
from scheduler.orm import database_time
from scheduler.trigger_words import plain_words
from tenants.models import Role

# Input --------------------------------------------------------------------------------------------


class ScheduleBody(serializers.Serializer[Any]):
    """The shape of a schedule's body, for the schema. `scheduler.definitions` reads and judges it."""

    name = serializers.CharField(max_length=definitions.NAME_LENGTH)
    target = serializers.CharField()
    payload = serializers.DictField(required=False)
    payload_ref = serializers.CharField(required=False, allow_null=True)
    trigger = serializers.DictField(
        help_text="Exactly one of `once: {at, timezone?}`, `cron: {expressions, timezone, dst?, day_match?}`,"
        " `interval: {every_s, anchor?}`."
    )
    start_at = serializers.DateTimeField(required=False, allow_null=True)
    end_at = serializers.DateTimeField(required=False, allow_null=True)
    max_occurrences = serializers.IntegerField(required=False, allow_null=True)
    exclusions = serializers.ListField(child=serializers.DictField(), required=False)
    on_excluded = serializers.CharField(required=False)
    flexible_window_s = serializers.IntegerField(required=False)
    mode = serializers.CharField(required=False)
    catch_up = serializers.CharField(required=False)
    catch_up_limit = serializers.IntegerField(required=False)
    catch_up_window_s = serializers.IntegerField(required=False, allow_null=True)
    catch_up_after_s = serializers.IntegerField(required=False)
    overlap = serializers.CharField(required=False)
    buffer_limit = serializers.IntegerField(required=False)
    retry = serializers.DictField(required=False)
    timeout_s = serializers.IntegerField(required=False)
    cancel_grace_s = serializers.IntegerField(required=False)
    schedule_to_start_s = serializers.IntegerField(required=False, allow_null=True)
    heartbeat_timeout_s = serializers.IntegerField(required=False, allow_null=True)
    late_after_s = serializers.IntegerField(required=False)
    priority = serializers.CharField(required=False)
    on_failure = serializers.DictField(required=False)
    tags = serializers.ListField(child=serializers.CharField(), required=False)
    description = serializers.CharField(required=False, allow_blank=True)


class DraftBody(ScheduleBody):
    """For a preview only what decides about instants is needed."""

    name = serializers.CharField(required=False)
    target = serializers.CharField(required=False)


class NoteBody(serializers.Serializer[Any]):
    note = serializers.CharField(default="", allow_blank=True, max_length=2000)


class ResumeBody(NoteBody):
    resume = serializers.CharField(default="from_now")


class TriggerBody(serializers.Serializer[Any]):
    overlap = serializers.CharField(
        default=None, allow_null=True, help_text=f"{' or '.join([policy.value for policy in Overlap])}."
    )


class BackfillBody(serializers.Serializer[Any]):
    to = serializers.DateTimeField(help_text="Not included; not later than now.")
    overlap = serializers.CharField(
        default=None, allow_null=True, help_text="By default the runs wait for each other."
    )
    rerun = serializers.BooleanField(default=False, help_text="Also where there is a run already.")
    dry_run = serializers.BooleanField(default=False)

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """`from` is a word of Python."""
        return {**super().get_fields(), "from": serializers.DateTimeField(help_text="RFC 3339; included.")}


class ExplainQuery(serializers.Serializer[Any]):
    at = serializers.DateTimeField(required=False, help_text="RFC 3339; by default now.")


def read_query(serializer: type[serializers.Serializer[Any]], request: Request) -> dict[str, Any]:
    return validated(serializer, request.query_params)


def expected_revision(request: Request) -> int | None:
    """What `If-Match` asks for; None for `*`. Raises Problem when it is absent or no ETag of ours."""
    text = request.headers.get("If-Match", "").strip()
    if not text:
        raise Problem(
            428, 'Say which revision you edit: If-Match with the ETag of your last read, as in "3".'
        )
    if text == "*":
        return None
    tag = re.fullmatch(r'"(\d{1,9})"', text, re.ASCII)
    if tag is None:
        raise Problem(400, 'If-Match takes one ETag, as in "3".', code="invalid_if_match")
    return int(tag[1])


# Output -------------------------------------------------------------------------------------------


class ScheduleOutput(ScheduleBody):
    """A schedule as it stands: its body, and where it is. For the schema; `described` makes it."""

    id = serializers.UUIDField()
    state = serializers.ChoiceField(choices=ScheduleState.values)
    state_note = serializers.CharField()
    fault = serializers.CharField(help_text="The error that set a faulted schedule aside.")
    revision = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    next_due_at = serializers.DateTimeField(allow_null=True)
    next_instants = InstantOutput(many=True)
    last_run = RunOutput(allow_null=True)
    counts_by_state = serializers.DictField(
        child=serializers.IntegerField(), help_text=f"Of the latest {queries.COUNTED_RUNS} runs."
    )
    health = serializers.CharField(help_text="`ok`, `late`, `failing`, or the state when not active.")
    runs_url = serializers.URLField()


class SchedulePageOutput(serializers.Serializer[Any]):
    results = ScheduleOutput(many=True)
    next = serializers.URLField(allow_null=True)
    previous = serializers.URLField(allow_null=True)


class ExplanationOutput(serializers.Serializer[Explanation]):
    at = serializers.DateTimeField()
    reason = serializers.CharField(
        help_text="`run`, `skipped`, `coalesced`, `planned`, `behind`, `paused`, `replaced`, `excluded`,"
        " `dst`, `out_of_bounds`, `not_due`, `before_creation`, `cancelled`, `limit`, `faulted`, `after_run`"
        " or `unaccounted`."
    )
    sentence = serializers.CharField()
    revision = serializers.IntegerField(allow_null=True)
    run_id = serializers.UUIDField(allow_null=True)
    notes = serializers.ListField(child=serializers.CharField())


class BackfillOutput(serializers.Serializer[Backfill]):
    instants = serializers.IntegerField(help_text="`existing` and `missing` together.")
    existing = serializers.IntegerField()
    missing = serializers.IntegerField()
    runs = serializers.IntegerField(help_text="How many were made, or would be.")


class EditPreviewOutput(serializers.Serializer[Any]):
    old = InstantOutput(many=True)
    new = InstantOutput(many=True)
    dropped = serializers.ListField(child=serializers.DateTimeField())
    added = serializers.ListField(child=serializers.DateTimeField())
    words = serializers.CharField()


class TriggeredOutput(serializers.Serializer[Any]):
    run_id = serializers.UUIDField()


def described(request: Request, schedules: Sequence[Schedule]) -> list[dict[str, Any]]:
    """Schedules as the API shows them, in a fixed number of queries however many they are."""
    now = database_time()
    revisions = queries.revisions_in_force(schedules)
    last_runs = queries.last_runs(schedules, now=now)
    counts = queries.counts_of(schedules)
    return [
        {
            "id": str(schedule.id),
            **definitions.body_of(schedule.name, revision),
            "state": schedule.state,
            "state_note": schedule.state_note,
            "fault": schedule.fault,
            "revision": schedule.revision,
            "created_at": definitions.rfc3339(schedule.created_at),
            "updated_at": definitions.rfc3339(schedule.updated_at),
            "next_due_at": schedule.next_due_at and definitions.rfc3339(schedule.next_due_at),
            "next_instants": shown(queries.next_instants(schedule, revision=revision)),
            "last_run": RunOutput(last_run).data if last_run else None,
            "counts_by_state": counts[schedule.id],
            "health": queries.health(schedule, last_run, now=now, late_after_s=revision.late_after_s),
            "runs_url": request.build_absolute_uri(reverse("schedule-runs", args=[schedule.id])),
        }
        for schedule in schedules
        for revision, last_run in [(revisions[schedule.id], last_runs.get(schedule.id))]
    ]


def answer(request: Request, schedule: Schedule, status: int = 200) -> Response:
    body = described(request, [schedule])[0]
    return Response(body, status=status, headers={"ETag": f'"{body["revision"]}"'})


# Views --------------------------------------------------------------------------------------------

IF_MATCH = OpenApiParameter("If-Match", str, OpenApiParameter.HEADER, required=True)
IDEMPOTENCY_KEY = OpenApiParameter("Idempotency-Key", str, OpenApiParameter.HEADER)


class Schedules(TenantView):
    roles = {"GET": Role.VIEWER, "POST": Role.EDITOR}

    @extend_schema(
        operation_id="list_schedules",
        parameters=[
            OpenApiParameter("state", str, enum=ScheduleState.values),
            OpenApiParameter("search", str, description="Part of the name."),
            *PAGE_PARAMETERS,
        ],
        responses=SchedulePageOutput,
    )
    def get(self, request: Request) -> Response:
        """The tenant's schedules, the newest first; cancelled ones only when asked for by `state`."""
        asked = read_query(ScheduleQuery, request)
        rows = queries.schedules(self.tenant, state=asked.get("state"), search=asked["search"])
        found = page(request, rows, by="created_at")
        return Response(found.answer(described(request, found.rows)))

    @extend_schema(
        operation_id="create_schedule",
        parameters=[IDEMPOTENCY_KEY],
        request=ScheduleBody,
        responses={201: ScheduleOutput},
    )
    def post(self, request: Request) -> Response:
        """Create a schedule. It is durable before the answer."""
        return answer_once(request, lambda: self._create(request))

    def _create(self, request: Request) -> Response:
        schedule = operations.create_schedule(self.tenant, body_of(request), actor=actor_of(request))
        response = answer(request, schedule, status=201)
        response["Location"] = reverse("schedule", args=[schedule.id])
        return response


class ScheduleQuery(serializers.Serializer[Any]):
    state = serializers.ChoiceField(choices=ScheduleState.values, required=False)
    search = serializers.CharField(default="", allow_blank=True, max_length=definitions.NAME_LENGTH)
    cursor = serializers.CharField(required=False)
    page_size = serializers.CharField(required=False)


class OneSchedule(ScheduleView):
    roles = {"GET": Role.VIEWER, "PATCH": Role.EDITOR, "DELETE": Role.EDITOR}

    @extend_schema(operation_id="read_schedule", responses=ScheduleOutput)
    def get(self, request: Request, schedule_id: UUID) -> Response:
        """One schedule; its ETag is its revision."""
        return answer(request, self.schedule)

    @extend_schema(
        operation_id="edit_schedule", parameters=[IF_MATCH], request=ScheduleBody, responses=ScheduleOutput
    )
    def patch(self, request: Request, schedule_id: UUID) -> Response:
        """Replace top-level fields by a new revision. What was dispatched keeps the old one."""
        schedule = operations.edit_schedule(
            self.tenant,
            schedule_id,
            body_of(request),
            expected_revision=expected_revision(request),
            actor=actor_of(request),
        )
        return answer(request, schedule)

    @extend_schema(operation_id="delete_schedule", responses={204: None})
    def delete(self, request: Request, schedule_id: UUID) -> Response:
        """Cancel the schedule; its history stays readable."""
        operations.delete_schedule(self.tenant, schedule_id, actor=actor_of(request))
        return Response(status=204)


class SchedulePause(ScheduleView):
    roles = {"POST": Role.OPERATOR}

    @extend_schema(operation_id="pause_schedule", request=NoteBody, responses=ScheduleOutput)
    def post(self, request: Request, schedule_id: UUID) -> Response:
        """Stop making runs. After the answer none that is due later starts."""
        body = read_body(NoteBody, request)
        return answer(
            request,
            operations.pause_schedule(self.tenant, schedule_id, note=body["note"], actor=actor_of(request)),
        )


class ScheduleResume(ScheduleView):
    roles = {"POST": Role.OPERATOR}

    @extend_schema(operation_id="resume_schedule", request=ResumeBody, responses=ScheduleOutput)
    def post(self, request: Request, schedule_id: UUID) -> Response:
        """Go on from now."""
        body = read_body(ResumeBody, request)
        return answer(
            request,
            operations.resume_schedule(self.tenant, schedule_id, **body, actor=actor_of(request)),
        )


class ScheduleTrigger(ScheduleView):
    roles = {"POST": Role.OPERATOR}

    @extend_schema(
        operation_id="trigger_schedule",
        parameters=[IDEMPOTENCY_KEY],
        request=TriggerBody,
        responses={202: TriggeredOutput},
    )
    def post(self, request: Request, schedule_id: UUID) -> Response:
        """Ask for a run now. It honours the overlap policy unless `overlap` says otherwise."""
        return answer_once(request, lambda: self._trigger(request))

    def _trigger(self, request: Request) -> Response:
        body = read_body(TriggerBody, request)
        key = key_of(request)
        run_id = operations.trigger_schedule(
            self.tenant,
            self.schedule.id,
            overlap=body["overlap"],
            request_key=uuid5(self.tenant.id, key) if key else uuid4(),
            actor=actor_of(request),
        )
        return Response({"run_id": str(run_id)}, status=202)


class SchedulePreview(ScheduleView):
    roles = {"GET": Role.VIEWER, "POST": Role.EDITOR}

    @extend_schema(operation_id="preview_schedule", parameters=[PreviewQuery], responses=PreviewOutput)
    def get(self, request: Request, schedule_id: UUID) -> Response:
        """The instants of the revision in force, from `from` on."""
        asked = read_query(PreviewQuery, request)
        revision = queries.revision(self.schedule)
        instants = queries.preview(self.schedule, asked["count"], start=asked.get("from"), revision=revision)
        return Response({"instants": shown(instants), "words": plain_words(revision.trigger)})

    @extend_schema(
        operation_id="preview_edit",
        parameters=[PreviewQuery],
        request=DraftBody,
        responses=EditPreviewOutput,
    )
    def post(self, request: Request, schedule_id: UUID) -> Response:
        """Old against new: what a PATCH with this body would do to the coming instants."""
        asked = read_query(PreviewQuery, request)
        found = queries.preview_edit(
            self.tenant, self.schedule, body_of(request), asked["count"], start=asked.get("from")
        )
        return Response(
            {
                "old": shown(found.old),
                "new": shown(found.new),
                "dropped": [definitions.rfc3339(instant) for instant in found.dropped],
                "added": [definitions.rfc3339(instant) for instant in found.added],
                "words": found.words,
            }
        )


class ScheduleExplain(ScheduleView):
    roles = {"GET": Role.VIEWER}

    @extend_schema(operation_id="explain_schedule", parameters=[ExplainQuery], responses=ExplanationOutput)
    def get(self, request: Request, schedule_id: UUID) -> Response:
        """Why it did, did not, or will run at that instant, by the revision in force then."""
        found = explain(self.schedule, read_query(ExplainQuery, request).get("at") or database_time())
        return Response(ExplanationOutput(found).data)


class ScheduleBackfill(ScheduleView):
    roles = {"POST": Role.OPERATOR}

    @extend_schema(
        operation_id="backfill_schedule",
        parameters=[IDEMPOTENCY_KEY],
        request=BackfillBody,
        responses={202: BackfillOutput},
    )
    def post(self, request: Request, schedule_id: UUID) -> Response:
        """Make runs for the past instants of [from, to) that have none. `dry_run` only counts."""
        return answer_once(request, lambda: self._backfill(request))

    def _backfill(self, request: Request) -> Response:
        body = read_body(BackfillBody, request)
        key = key_of(request)
        done = backfill_schedule(
            self.tenant,
            self.schedule.id,
            begin=body.pop("from"),
            end=body.pop("to"),
            **body,
            request_key=uuid5(self.tenant.id, key) if key else uuid4(),
            actor=actor_of(request),
        )
        return Response({**BackfillOutput(done).data, "dry_run": body["dry_run"]}, status=202)


class DraftPreview(TenantView):
    roles = {"POST": Role.VIEWER}

    @extend_schema(
        operation_id="preview_draft", parameters=[PreviewQuery], request=DraftBody, responses=PreviewOutput
    )
    def post(self, request: Request) -> Response:
        """The instants that this body would give. Nothing is stored, and only `trigger` is needed."""
        asked = read_query(PreviewQuery, request)
        draft = body_of(request)
        instants = queries.preview_draft(self.tenant, draft, asked["count"], start=asked.get("from"))
        return Response({"instants": shown(instants), "words": plain_words(draft["trigger"])})
