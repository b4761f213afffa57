"""What all views of the API have in common."""

from collections.abc import Collection, Iterable
from typing import Any, ClassVar
from uuid import UUID

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.views import APIView

from api.authentication import access_of
from scheduler import queries
from scheduler.core.reading import did_you_mean
from scheduler.definitions import printable
from scheduler.errors import FieldError, ValidationFailed
from scheduler.models import Occurrence, Schedule
from tenants.models import Role, Tenant


class TenantView(APIView):
    """A view of one tenant's things. `roles`: what each method takes (`api.permissions.HasRole`)."""

    http_method_names = ["get", "post", "patch", "delete", "head"]
    roles: ClassVar[dict[str, Role]] = {}

    @property
    def tenant(self) -> Tenant:
        return access_of(self.request).tenant


class ScheduleView(TenantView):
    """A view of one schedule: found, or a 404, before anything else of the request is looked at."""

    schedule: Schedule

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        schedule_id: UUID = kwargs["schedule_id"]
        self.schedule = queries.schedule(self.tenant, schedule_id)


class RunView(TenantView):
    """The same for one run."""

    run: Occurrence

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        run_id: UUID = kwargs["run_id"]
        self.run = queries.run(self.tenant, run_id)


def body_of(request: Request) -> dict[str, Any]:
    """The parsed body; empty when there is none."""
    return dict(request.data)


def refuse_unknown(given: Iterable[str], known: Collection[str]) -> None:
    """Raise ValidationFailed for names that are not `known`: a misspelt one must not be ignored."""
    errors = [
        FieldError(
            field=printable(name),
            code="unknown_field",
            detail=f"this is not known here.{did_you_mean(name, known) or _what_is(known)}",
        )
        for name in given
        if name not in known
    ]
    if errors:
        raise ValidationFailed(*errors)


def _what_is(known: Collection[str]) -> str:
    return f" Known are: {', '.join(sorted(known))}." if known else " Nothing is expected."


def read_body(serializer: type[serializers.Serializer[Any]], request: Request) -> dict[str, Any]:
    return validated(serializer, body_of(request))


def validated(serializer: type[serializers.Serializer[Any]], given: Any) -> dict[str, Any]:
    reading = serializer(data=given)
    refuse_unknown(given, reading.fields)
    reading.is_valid(raise_exception=True)
    values: dict[str, Any] = reading.validated_data
    return values
