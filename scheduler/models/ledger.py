"""The ledger's shape, for reading. Only `scheduler/store` moves these rows.

The partitioned tables declare a plain `id` to Django; their real keys hold `due_at` too and are
made by RunSQL in the migrations, as are the CHECKs that mirror `core/states.py`.
"""

from django.db import models

from scheduler.core.overlap import Overlap
from scheduler.core.states import State
from scheduler.models.definitions import Schedule
from tenants.models import Tenant

STATE_CHOICES = [(state.value, state.value) for state in State]


class Occurrence(models.Model):
    """The logical run for one due instant. `id` is a UUIDv7 whose time is `due_at`."""

    id = models.UUIDField(primary_key=True)
    due_at = models.DateTimeField()
    schedule = models.ForeignKey(
        Schedule, on_delete=models.DO_NOTHING, db_constraint=False, related_name="occurrences"
    )
    revision = models.PositiveIntegerField()
    origin = models.CharField(max_length=10)
    origin_key = models.UUIDField()
    tenant = models.ForeignKey(Tenant, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    shard = models.PositiveSmallIntegerField()
    state = models.CharField(max_length=13, choices=STATE_CHOICES)
    overlap = models.CharField(max_length=14)  # its revision's policy, or that of the request
    wait_reason = models.CharField(max_length=20, null=True)
    skip_reason = models.CharField(max_length=10, null=True)
    dispatch_at = models.DateTimeField()
    generation = models.PositiveIntegerField()
    attempt_count = models.PositiveIntegerField()
    attempts_forgiven = models.PositiveIntegerField(default=0)  # by the last redrive
    fence = models.BigIntegerField(null=True)
    overdue = models.BooleanField()
    coalesced = models.PositiveIntegerField()
    coalesced_from = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    queued_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    dismissed_at = models.DateTimeField(null=True)
    reconciled_at = models.DateTimeField(null=True)
    payload = models.JSONField(null=True)  # its own, where code asked for the run; else its revision's
    counts_from = models.DateTimeField(null=True)  # instead of due_at: a person asked for it anew
    dead_letter_reason = models.CharField(max_length=10, null=True)
    reconcile_at = models.DateTimeField(null=True)
    reconcile_tries = models.PositiveIntegerField(default=0)
    result = models.JSONField(null=True)
    error = models.JSONField(null=True)
    progress = models.JSONField(null=True)
    late_writes_refused = models.PositiveIntegerField()
    tzdata_version = models.CharField(max_length=12)

    class Meta:
        managed = False
        db_table = "occurrence"
        verbose_name = "run"

    def __str__(self) -> str:
        return str(self.id)

    @property
    def tries(self) -> int:
        """Attempts since the last redrive: what `max_attempts` limits."""
        return self.attempt_count - self.attempts_forgiven

    @property
    def slotted(self) -> bool:
        """Whether it needs its schedule's slot."""
        return self.overlap != Overlap.ALLOW


class Attempt(models.Model):
    """One try at a run; `fence` identifies it across all runs."""

    fence = models.BigIntegerField(primary_key=True)
    run_id = models.UUIDField()
    due_at = models.DateTimeField()
    number = models.PositiveIntegerField()
    session_id = models.UUIDField()
    worker = models.CharField(max_length=200)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=10, null=True)
    error = models.JSONField(null=True)
    trace_id = models.CharField(max_length=32, null=True)

    class Meta:
        managed = False
        db_table = "attempt"

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.run_id}"


class Lease(models.Model):
    """That an attempt is in somebody's hands: a session's, or, with `expires_at`, an endpoint's."""

    run_id = models.UUIDField(primary_key=True)
    due_at = models.DateTimeField()
    session_id = models.UUIDField()
    fence = models.BigIntegerField()
    expires_at = models.DateTimeField(null=True)

    class Meta:
        managed = False
        db_table = "lease"

    def __str__(self) -> str:
        return f"lease of {self.run_id} under fence {self.fence}"


class Session(models.Model):
    """A process's renewable claim to be alive. Workers hold leases by it; ticks and relays are counted."""

    id = models.UUIDField(primary_key=True)
    kind = models.CharField(max_length=8)
    worker = models.CharField(max_length=200)  # host:pid, for people
    capacity = models.PositiveIntegerField()
    busy = models.PositiveIntegerField()
    prefetched = models.PositiveIntegerField()
    started_at = models.DateTimeField()
    renewed_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = "session"

    def __str__(self) -> str:
        return f"{self.kind} {self.worker}"


class ShardLease(models.Model):
    """Which process works a shard, per kind (`tick`, `relay`). Saves work; guarantees nothing."""

    id = models.BigAutoField(primary_key=True)
    kind = models.CharField(max_length=8)
    shard = models.PositiveSmallIntegerField()
    owner = models.UUIDField(null=True)
    epoch = models.BigIntegerField()
    expires_at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = "shard_lease"

    def __str__(self) -> str:
        return f"{self.kind} {self.shard}"
