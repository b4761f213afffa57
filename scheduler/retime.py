"""Zone data that has changed under schedules: what of their future moves, and moving it.

A revision's zone is kept as it was when it was first used (`ZoneRules`), so that the old rules are at hand
when the wheel has been replaced. What has been handed to the ledger stays as it is. A schedule goes on after
the local time that it last fired at, so that no local time fires twice because its zone was moved; a local
time that the new rules put into the past, and that has not fired, is late and goes by the catch-up policy.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from django.db import transaction
from django.db.models import Q, QuerySet

from scheduler.core import dst, zonedata
from scheduler.core.triggers import trigger_of
from scheduler.models import Schedule, ScheduleRevision, ScheduleState, ZoneRules
from scheduler.operations import what_is_ahead, zone_rules
from scheduler.orm import database_time


@dataclass(frozen=True, kw_only=True)
class Retiming:
    """A schedule whose next instant moves. `after` None: nothing is left of it."""

    schedule: Schedule
    zone: str
    before: datetime
    after: datetime | None


def plan() -> list[Retiming]:
    """What `apply` would move. Reads only."""
    moves = [_retiming(schedule, kept) for kept in _changed() for schedule in _in_zone(kept.zone)]
    return [move for move in moves if move is not None]


def apply() -> list[Retiming]:
    """Move what `plan` lists, zone by zone, and keep the new rules. Asked again, it finds nothing."""
    moved = []
    for kept in list(_changed()):
        with transaction.atomic():
            for schedule in _in_zone(kept.zone).select_for_update(of=("self",)):
                move = _retiming(schedule, kept)
                _go_on(schedule, kept, move)
                moved += [move] if move else []
            zone_rules(kept.zone).save(force_update=True)
    return moved


def _changed() -> Iterator[ZoneRules]:
    for kept in ZoneRules.objects.order_by("zone"):
        if zonedata.fingerprint(bytes(kept.rules)) != zonedata.fingerprint(zonedata.rules_of(kept.zone)):
            yield kept


def _in_zone(zone: str) -> QuerySet[Schedule]:
    """Schedules with a revision in this zone, in force or not: their history is of the old rules, too."""
    kinds = ("cron", "rrule", "once")
    named = [Q(**{f"trigger__{kind}__timezone": zone}) for kind in kinds]
    revisions = ScheduleRevision.objects.filter(named[0] | named[1] | named[2])
    return Schedule.objects.filter(id__in=revisions.values("schedule_id")).order_by("id")


def _retiming(schedule: Schedule, kept: ZoneRules) -> Retiming | None:
    if schedule.state != ScheduleState.ACTIVE or schedule.next_due_at is None:
        return None
    revision = schedule.revisions.get(number=schedule.revision)
    if zonedata.zone_that_matters(trigger_of(revision)) != kept.zone:
        return None
    after = what_is_ahead(schedule, revision, _position(schedule, kept)).next_due_at
    if after == schedule.next_due_at:
        return None
    return Retiming(schedule=schedule, zone=kept.zone, before=schedule.next_due_at, after=after)


def _position(schedule: Schedule, kept: ZoneRules) -> datetime:
    """Where the timeline by the new rules begins: after everything that was done by the old ones."""
    revision = schedule.revisions.get(number=schedule.revision)
    resumed = schedule.pauses.exclude(resumed_from=None).order_by("-resumed_from").first()
    known = [revision.effective_from]
    known += [resumed.resumed_from] if resumed and resumed.resumed_from else []
    if schedule.last_due_at is not None:
        fired_at = schedule.last_due_at.astimezone(zonedata.zone_by(bytes(kept.rules), kept.zone))
        known += [schedule.last_due_at, _by_new_rules(fired_at.replace(tzinfo=None), kept.zone)]
    return max(known)


def _by_new_rules(local: datetime, zone: str) -> datetime:
    return dst.time_of_day(local.replace(fold=0), ZoneInfo(zone))


def _go_on(schedule: Schedule, kept: ZoneRules, move: Retiming | None) -> None:
    active = schedule.state == ScheduleState.ACTIVE
    schedule.rules_changed_at = _position(schedule, kept) if active else database_time()
    if move is not None:
        schedule.next_due_at = move.after
        schedule.state = ScheduleState.ACTIVE if move.after else ScheduleState.COMPLETED
    schedule.save(update_fields=["rules_changed_at", "next_due_at", "state"])
