"""Runs of HTTP targets, by their endpoints: heartbeats, and how a run has ended."""

from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from api.runs import RunDetailOutput
from api.views import RunView, read_body
from scheduler import operations, queries
from scheduler.definitions import rfc3339
from scheduler.operations.reports import OUTCOMES
from tenants.models import Role

LARGEST_FENCE = 2**63 - 1
MOST_RETRY_AFTER_S = 86_400


class FenceBody(serializers.Serializer[Any]):
    fence = serializers.IntegerField(
        min_value=1, max_value=LARGEST_FENCE, help_text="X-Fencepost-Fence of the call."
    )


class HeartbeatBody(FenceBody):
    percent = serializers.FloatField(required=False, min_value=0, max_value=100)
    note = serializers.CharField(required=False, allow_blank=True, max_length=500)
    resume = serializers.JSONField(
        required=False, help_text="Up to 4 KiB; the next attempt gets it as X-Fencepost-Resume."
    )


class HeartbeatOutput(serializers.Serializer[Any]):
    cancel_requested = serializers.BooleanField(help_text="Stop, and complete the run as failed.")
    lease_expires_at = serializers.DateTimeField(
        allow_null=True, help_text="When the next heartbeat is due; null: the target promises none."
    )
    ends_by = serializers.DateTimeField(help_text="When the attempt ends whatever the heartbeats say.")


class CompleteBody(FenceBody):
    outcome = serializers.ChoiceField(OUTCOMES)
    result = serializers.JSONField(required=False, default=None, allow_null=True)
    error = serializers.CharField(default="", allow_blank=True, max_length=2000)
    retry_after_s = serializers.FloatField(
        default=None, allow_null=True, min_value=0, max_value=MOST_RETRY_AFTER_S
    )


class RunHeartbeat(RunView):
    roles = {"POST": Role.OPERATOR}

    @extend_schema(operation_id="heartbeat_run", request=HeartbeatBody, responses=HeartbeatOutput)
    def post(self, request: Request, run_id: UUID) -> Response:
        """An endpoint that answered 202 is alive: its lease is renewed, and what it reports is shown. 409
        `superseded_fence` when the run is no longer its own: stop at once."""
        body = read_body(HeartbeatBody, request)
        fence = body.pop("fence")
        renewal = operations.heartbeat_run(self.tenant, run_id, fence=fence, progress=dict(body))
        expires_at = renewal.expires_at
        return Response(
            {
                "cancel_requested": renewal.cancel_requested,
                "lease_expires_at": rfc3339(expires_at) if expires_at else None,
                "ends_by": rfc3339(renewal.ends_by),
            }
        )


class RunComplete(RunView):
    roles = {"POST": Role.OPERATOR}

    @extend_schema(operation_id="complete_run", request=CompleteBody, responses=RunDetailOutput)
    def post(self, request: Request, run_id: UUID) -> Response:
        """An endpoint that answered 202 says how the run ended. The same again is the same answer; 409
        `superseded_fence` when the run is no longer its own."""
        operations.complete_run(self.tenant, run_id, **read_body(CompleteBody, request))
        return Response(RunDetailOutput(queries.run(self.tenant, run_id)).data)
