"""Instants as the API shows them, and the question for them."""

from typing import Any

from rest_framework import serializers

from scheduler.core.triggers import PreviewInstant
from scheduler.definitions import rfc3339

MAX_COUNT = 100


class InstantOutput(serializers.Serializer[PreviewInstant]):
    utc = serializers.DateTimeField()
    local = serializers.CharField(help_text="The same instant on the schedule's own clock, with its offset.")
    notes = serializers.ListField(
        child=serializers.CharField(), help_text="What clock changes, exclusions or the day rule did to it."
    )


class PreviewOutput(serializers.Serializer[Any]):
    instants = InstantOutput(many=True)
    words = serializers.CharField(help_text="The trigger in plain words.")


class PreviewQuery(serializers.Serializer[Any]):
    count = serializers.IntegerField(min_value=1, max_value=MAX_COUNT, default=10)

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """`from` is a word of Python."""
        start = serializers.DateTimeField(required=False, help_text="RFC 3339; by default now.")
        return {**super().get_fields(), "from": start}


def shown(instants: list[PreviewInstant]) -> list[dict[str, Any]]:
    return [
        {"utc": rfc3339(instant.utc), "local": instant.local.isoformat(), "notes": list(instant.notes)}
        for instant in instants
    ]
