"""What people define: targets, schedules and their revisions."""

import uuid
from enum import StrEnum

from django.db import models
from django.db.models import Q

from scheduler.core.calendars import OnExcluded
from scheduler.core.catchup import CatchUp
from scheduler.core.overlap import Overlap
from scheduler.core.rest import Mode
from tenants.models import Tenant


def _choices(policies: type[StrEnum]) -> list[tuple[str, str]]:
    return [(policy.value, policy.value) for policy in policies]


class TargetKind(models.TextChoices):
    JOB = "job"
    HTTP = "http", "HTTP"
    TASK = "task"  # an existing Celery task, named by FENCEPOST_TASKS


class SideEffects(models.TextChoices):
    IDEMPOTENT = "idempotent"
    FENCED = "fenced"
    UNSAFE_EXTERNAL = "unsafe_external"


class Target(models.Model):
    """What may be run: a job of the code, or an HTTP endpoint.

    A tenant's own targets have it as their `owner`, and only that tenant may name them. Of the platform's,
    with `tenants` empty and `everyone` false, nobody may.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, null=True, blank=True, related_name="own_targets"
    )
    name = models.CharField(max_length=200)
    kind = models.CharField(max_length=8, choices=TargetKind.choices, default=TargetKind.JOB)
    side_effects = models.CharField(
        max_length=16, choices=SideEffects.choices, default=SideEffects.IDEMPOTENT
    )
    # Defaults of the job, copied from its decorator by `apply`; null: the product's own default.
    timeout_s = models.PositiveIntegerField(null=True, blank=True)
    cancel_grace_s = models.PositiveIntegerField(null=True, blank=True)
    heartbeat_timeout_s = models.PositiveIntegerField(null=True, blank=True)
    retry = models.JSONField(null=True, blank=True)
    parameters = models.JSONField(default=dict, blank=True)  # JSON schema of the payload
    description = models.TextField(blank=True)
    # Of an HTTP target. `sealed` has its credentials (scheduler/credentials.py), encrypted; nobody reads them
    # but the worker that makes the call.
    url = models.CharField(max_length=2000, blank=True, db_default="")
    sealed = models.TextField(blank=True, editable=False, db_default="")
    everyone = models.BooleanField(default=False)
    tenants = models.ManyToManyField(Tenant, blank=True, related_name="targets")
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "target"
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=Q(kind__in=TargetKind.values), name="target_kind"),
            models.CheckConstraint(condition=Q(side_effects__in=SideEffects.values), name="target_effects"),
            models.CheckConstraint(
                condition=(Q(kind="http") & ~Q(url="")) | (~Q(kind="http") & Q(url="")), name="target_url"
            ),
            models.UniqueConstraint(
                fields=["name"], condition=Q(owner__isnull=True), name="target_name_once"
            ),
            models.UniqueConstraint(fields=["owner", "name"], name="target_name_once_an_owner"),
        ]

    def __str__(self) -> str:
        return self.name


class ScheduleState(models.TextChoices):
    ACTIVE = "active"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    COMPLETED = "completed"
    FAULTED = "faulted"


class Schedule(models.Model):
    """A definition's identity and its position in time; the definition itself is the revision in force.

    Kept narrow: the tick moves `next_due_at` of every due row.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="schedules")
    name = models.CharField(max_length=200)
    state = models.CharField(max_length=10, choices=ScheduleState.choices, default=ScheduleState.ACTIVE)
    shard = models.PositiveSmallIntegerField(editable=False)
    revision = models.PositiveIntegerField(default=1, editable=False)
    next_due_at = models.DateTimeField(null=True, blank=True, editable=False)
    # The last instant already handed to the ledger: an edit never goes back behind it.
    last_due_at = models.DateTimeField(null=True, blank=True, editable=False)
    # What is due up to here was resolved by zone rules of before an update, and is taken as it is on record.
    rules_changed_at = models.DateTimeField(null=True, blank=True, editable=False)
    # Runs due up to `counted_until` that count for `max_occurrences`, whatever becomes of their rows.
    counted_runs = models.PositiveIntegerField(default=0, editable=False)
    counted_until = models.DateTimeField(null=True, blank=True, editable=False)
    # The schedule holds the runs that code asks for, of this target: it has no instants of its own.
    on_request_of = models.ForeignKey(
        Target, on_delete=models.PROTECT, related_name="+", null=True, blank=True, editable=False
    )
    state_note = models.TextField(blank=True)
    fault = models.TextField(blank=True)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "schedule"
        constraints = [
            models.CheckConstraint(condition=Q(state__in=ScheduleState.values), name="schedule_state"),
            # Used by apply's upsert; a cancelled schedule gives its name free.
            models.UniqueConstraint(
                fields=["tenant", "name"], condition=~Q(state="cancelled"), name="schedule_name_once"
            ),
            models.UniqueConstraint(
                fields=["tenant", "on_request_of"],
                condition=Q(on_request_of__isnull=False) & ~Q(state="cancelled"),
                name="schedule_on_request_once",
            ),
        ]
        indexes = [
            # store/due.sql: due_schedules
            models.Index(
                fields=["shard", "next_due_at"],
                condition=Q(state="active", next_due_at__isnull=False),
                name="schedule_due",
            ),
            # store/rest.sql: resting_schedules
            models.Index(
                fields=["shard"],
                condition=Q(state="active", next_due_at__isnull=True),
                name="schedule_resting",
            ),
            # queries.schedules: the newest first of one tenant
            models.Index(fields=["tenant", "-created_at", "-id"], name="schedule_by_tenant"),
        ]

    def __str__(self) -> str:
        return self.name


class ScheduleRevision(models.Model):
    """Immutable, numbered snapshot of a definition. A run keeps the revision it came from."""

    id = models.BigAutoField(primary_key=True)
    schedule = models.ForeignKey(Schedule, on_delete=models.PROTECT, related_name="revisions")
    number = models.PositiveIntegerField()
    target = models.ForeignKey(Target, on_delete=models.PROTECT, related_name="+")
    target_name = models.CharField(max_length=200)
    payload = models.JSONField(default=dict)
    payload_ref = models.TextField(null=True, blank=True)
    trigger = models.JSONField()
    start_at = models.DateTimeField(null=True, blank=True)
    end_at = models.DateTimeField(null=True, blank=True)
    max_occurrences = models.PositiveIntegerField(null=True, blank=True)
    exclusions = models.JSONField(default=list, blank=True)
    on_excluded = models.CharField(max_length=20, choices=_choices(OnExcluded), default=OnExcluded.SKIP.value)
    # The calendars that `exclusions` names, as they were: a calendar that changes makes new revisions.
    calendars = models.JSONField(default=dict, blank=True)
    flexible_window_s = models.PositiveIntegerField(default=0)
    mode = models.CharField(max_length=20, choices=_choices(Mode), default=Mode.FIXED_RATE.value)
    catch_up = models.CharField(
        max_length=20, choices=_choices(CatchUp), default=CatchUp.RUN_LATEST_ONLY.value
    )
    catch_up_limit = models.PositiveIntegerField(default=100)
    catch_up_window_s = models.PositiveIntegerField(null=True, blank=True)
    catch_up_after_s = models.PositiveIntegerField(default=60)
    overlap = models.CharField(max_length=20, choices=_choices(Overlap), default=Overlap.SKIP.value)
    buffer_limit = models.PositiveIntegerField(default=1000)
    retry = models.JSONField(default=dict)
    timeout_s = models.PositiveIntegerField(default=300)
    cancel_grace_s = models.PositiveIntegerField(default=30)
    schedule_to_start_s = models.PositiveIntegerField(null=True, blank=True)
    heartbeat_timeout_s = models.PositiveIntegerField(null=True, blank=True)
    pause_after = models.PositiveIntegerField(null=True, blank=True)
    late_after_s = models.PositiveIntegerField(default=30)
    priority = models.CharField(max_length=8, default="normal")
    tags = models.JSONField(default=list)
    description = models.TextField(blank=True)
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=200)
    # Where the timeline of this revision begins: the later of the edit and the last kept instant.
    effective_from = models.DateTimeField()
    # Set when a later revision, a pause or a deletion ended it; with `withdrawn` the accounts balance.
    ended_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "schedule_revision"
        constraints = [
            models.UniqueConstraint(fields=["schedule", "number"], name="schedule_revision_once"),
            models.CheckConstraint(
                condition=Q(overlap__in=[policy.value for policy in Overlap]), name="revision_overlap"
            ),
            models.CheckConstraint(
                condition=Q(catch_up__in=[policy.value for policy in CatchUp]), name="revision_catch_up"
            ),
            models.CheckConstraint(condition=Q(mode__in=[mode.value for mode in Mode]), name="revision_mode"),
        ]

    def __str__(self) -> str:
        return f"{self.schedule_id} revision {self.number}"

    @property
    def on_failure(self) -> dict[str, int | None]:
        """As the API has it."""
        return {"pause_after": self.pause_after}


class Calendar(models.Model):
    """A tenant's days of rest by name: what `exclusions` may refer to."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="calendars")
    name = models.CharField(max_length=100)
    days = models.JSONField(default=list)  # "2026-12-25", or {"from": ..., "to": ...} inclusive
    revision = models.PositiveIntegerField(default=1, editable=False)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "calendar"
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="calendar_name_once")]

    def __str__(self) -> str:
        return self.name


class ZoneRules(models.Model):
    """A time zone's rules (TZif) as they were when next instants were last computed by them."""

    zone = models.CharField(max_length=64, primary_key=True)
    rules = models.BinaryField()
    tzdata_version = models.CharField(max_length=12)

    class Meta:
        db_table = "zone_rules"

    def __str__(self) -> str:
        return f"{self.zone} by {self.tzdata_version}"


class PauseInterval(models.Model):
    """From when to when a schedule materialised nothing, with who and why; open while `ended_at` is null."""

    id = models.BigAutoField(primary_key=True)
    schedule = models.ForeignKey(Schedule, on_delete=models.PROTECT, related_name="pauses")
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    # Where materialising went on after the pause; null while paused.
    resumed_from = models.DateTimeField(null=True)
    paused_by = models.CharField(max_length=200)
    note = models.TextField(blank=True)

    class Meta:
        db_table = "schedule_pause"
        constraints = [
            models.UniqueConstraint(
                fields=["schedule"], condition=Q(ended_at__isnull=True), name="schedule_pause_open_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.schedule_id} paused at {self.began_at}"
