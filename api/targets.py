"""Targets: what may be scheduled; a tenant's own HTTP targets are made, edited and switched off here."""

from typing import Any
from uuid import UUID

from django.urls import reverse
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from api.authentication import access_of, actor_of
from api.pagination import page
from api.runs import PAGE_PARAMETERS
from api.schedules import read_query
from api.views import TenantView, body_of, refuse_unknown
from scheduler import queries, targets
from scheduler.definitions import rfc3339
from scheduler.models import SideEffects, Target, TargetKind
from scheduler.orm import database_time
from tenants.models import Role


class TargetEditBody(serializers.Serializer[Any]):
    """For the schema; `scheduler.targets` reads and judges it."""

    url = serializers.CharField(required=False, max_length=targets.URL_LENGTH)
    side_effects = serializers.ChoiceField(SideEffects.values, required=False)
    timeout_s = serializers.IntegerField(required=False, allow_null=True)
    heartbeat_timeout_s = serializers.IntegerField(
        required=False,
        allow_null=True,
        help_text="How long an endpoint that answered 202 may be silent; null: as long as it runs.",
    )
    description = serializers.CharField(required=False, allow_blank=True)
    headers = serializers.DictField(
        child=serializers.CharField(allow_null=True),
        required=False,
        write_only=True,
        help_text="Sent with each call, never shown again. Each replaces its own; null takes it away.",
    )
    enabled = serializers.BooleanField(required=False)


class TargetBody(TargetEditBody):
    name = serializers.CharField(max_length=100)
    kind = serializers.CharField(required=False, help_text="`http`.")
    url = serializers.CharField(max_length=targets.URL_LENGTH)
    signing_secret = serializers.CharField(
        required=False, allow_null=True, help_text="`whsec_...`; else ours."
    )
    enabled = None  # type: ignore[assignment]


class RotateBody(serializers.Serializer[Any]):
    signing_secret = serializers.CharField(
        required=False, allow_null=True, help_text="`whsec_...`; else ours."
    )
    overlap_s = serializers.IntegerField(
        required=False, help_text="How long the old one signs beside it; a day by default."
    )


class SigningSecretOutput(serializers.Serializer[Any]):
    signs_until = serializers.DateTimeField(allow_null=True)


class TargetOutput(serializers.Serializer[Any]):
    """`headers`: their names; of the secrets nothing is shown but until when they sign."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    kind = serializers.ChoiceField(TargetKind.values)
    own = serializers.BooleanField(help_text="The tenant's own, to edit; else the platform's.")
    side_effects = serializers.ChoiceField(SideEffects.values)
    timeout_s = serializers.IntegerField(allow_null=True)
    description = serializers.CharField()
    enabled = serializers.BooleanField()
    created_at = serializers.DateTimeField()
    url = serializers.CharField(required=False, help_text="Its query is shown to admins of its owner alone.")
    heartbeat_timeout_s = serializers.IntegerField(required=False, allow_null=True)
    headers = serializers.ListField(child=serializers.CharField(), required=False, allow_null=True)
    signing_secrets = SigningSecretOutput(many=True, required=False, allow_null=True)


class RegisteredOutput(TargetOutput):
    signing_secret = serializers.CharField(help_text="Shown here and never again.")


class TargetPageOutput(serializers.Serializer[Any]):
    results = TargetOutput(many=True)
    next = serializers.URLField(allow_null=True)
    previous = serializers.URLField(allow_null=True)


class TargetQuery(serializers.Serializer[Any]):
    cursor = serializers.CharField(required=False)
    page_size = serializers.CharField(required=False)


def described(target: Target, request: Request) -> dict[str, Any]:
    access = access_of(request)
    own = target.owner_id == access.tenant.id
    body = {
        "id": str(target.id),
        "name": target.name,
        "kind": target.kind,
        "own": own,
        "side_effects": target.side_effects,
        "timeout_s": target.timeout_s,
        "description": target.description,
        "enabled": target.enabled,
        "created_at": rfc3339(target.created_at),
    }
    if target.kind != TargetKind.HTTP:
        return body
    body["heartbeat_timeout_s"] = target.heartbeat_timeout_s
    body["url"] = target.url if own and access.allows(Role.ADMIN) else targets.without_query(target.url)
    return body if not own else {**body, **targets.shown_credentials(target, now=database_time())}


def registered(made: targets.Registered, request: Request, *, status: int) -> Response:
    return Response({**described(made.target, request), "signing_secret": made.signing_secret}, status=status)


class Targets(TenantView):
    roles = {"GET": Role.VIEWER, "POST": Role.ADMIN}

    @extend_schema(operation_id="list_targets", parameters=PAGE_PARAMETERS, responses=TargetPageOutput)
    def get(self, request: Request) -> Response:
        """What the tenant may schedule, and those of its own that are switched off; the newest first."""
        read_query(TargetQuery, request)
        found = page(request, queries.all_targets(self.tenant), by="created_at")
        return Response(found.answer([described(target, request) for target in found.rows]))

    @extend_schema(operation_id="create_target", request=TargetBody, responses={201: RegisteredOutput})
    def post(self, request: Request) -> Response:
        """Register an HTTP endpoint. The answer alone shows the signing secret, so it is kept nowhere, not
        under an `Idempotency-Key` either: sent twice, the second finds the name taken."""
        made = targets.create_target(self.tenant, body_of(request), actor=actor_of(request))
        response = registered(made, request, status=201)
        response["Location"] = reverse("target", args=[made.target.id])
        return response


class TargetView(TenantView):
    """Found, or a 404, before anything else of the request is looked at; only its owner changes it."""

    target: Target

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        target_id: UUID = kwargs["target_id"]
        self.target = queries.target(self.tenant, target_id)
        if request.method not in ("GET", "HEAD") and self.target.owner_id != self.tenant.id:
            raise PermissionDenied("This target is the platform's: its operators change it.")


class OneTarget(TargetView):
    roles = {"GET": Role.VIEWER, "PATCH": Role.ADMIN, "DELETE": Role.ADMIN}

    @extend_schema(operation_id="read_target", responses=TargetOutput)
    def get(self, request: Request, target_id: UUID) -> Response:
        """One target, without its secrets."""
        return Response(described(self.target, request))

    @extend_schema(operation_id="edit_target", request=TargetEditBody, responses=TargetOutput)
    def patch(self, request: Request, target_id: UUID) -> Response:
        """Fields that are given replace the old ones, from the next call on. An address at another host takes
        the headers away that are not given with it."""
        target = targets.edit_target(self.tenant, target_id, body_of(request), actor=actor_of(request))
        return Response(described(target, request))

    @extend_schema(operation_id="delete_target", responses={204: None})
    def delete(self, request: Request, target_id: UUID) -> Response:
        """Switch it off: nothing is sent any more, no new schedule may name it. Runs stay readable."""
        refuse_unknown(body_of(request), ())
        targets.switch_off(self.tenant, target_id, actor=actor_of(request))
        return Response(status=204)


class TargetRotation(TargetView):
    roles = {"POST": Role.ADMIN}

    @extend_schema(operation_id="rotate_target_secret", request=RotateBody, responses=RegisteredOutput)
    def post(self, request: Request, target_id: UUID) -> Response:
        """A new signing secret. Until `overlap_s` is over calls carry the signatures of both."""
        made = targets.rotate_secret(self.tenant, target_id, body_of(request), actor=actor_of(request))
        return registered(made, request, status=200)
