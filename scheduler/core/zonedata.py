"""The rules of time zones as data: what the pinned wheel says now, and what it said when they were kept."""

from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from io import BytesIO
from zoneinfo import ZoneInfo

from scheduler.core.triggers import Trigger


@lru_cache(maxsize=1024)
def rules_of(zone: str) -> bytes:
    """The zone's TZif file. The name is one that a trigger was read with."""
    return files("tzdata").joinpath("zoneinfo", *zone.split("/")).read_bytes()


def fingerprint(rules: bytes) -> str:
    return sha256(rules).hexdigest()


def zone_by(rules: bytes, zone: str) -> ZoneInfo:
    return ZoneInfo.from_file(BytesIO(rules), key=zone)


def zone_that_matters(trigger: Trigger) -> str | None:
    """None where the trigger's instants are the same under any rules."""
    return None if trigger.zone.key == "UTC" else trigger.zone.key
