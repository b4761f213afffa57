"""Definitions of schedules: what a person may write, and what of it is stored."""

from scheduler.definitions.definition import Current, Definition, body_of
from scheduler.definitions.fields import (
    CALENDAR_NAME_LENGTH,
    FARTHEST_ONCE,
    FIELDS,
    NAME_LENGTH,
    TEXT_LENGTH,
    printable,
    rfc3339,
)
from scheduler.definitions.lookup import allowed_targets, find_target, living, schedules_naming
from scheduler.definitions.reading import (
    check_calendar,
    check_payload,
    read,
    read_instants,
    read_on_request,
)

__all__ = [
    "CALENDAR_NAME_LENGTH",
    "FARTHEST_ONCE",
    "FIELDS",
    "NAME_LENGTH",
    "TEXT_LENGTH",
    "Current",
    "Definition",
    "allowed_targets",
    "body_of",
    "check_calendar",
    "check_payload",
    "find_target",
    "living",
    "printable",
    "read",
    "read_instants",
    "read_on_request",
    "rfc3339",
    "schedules_naming",
]
