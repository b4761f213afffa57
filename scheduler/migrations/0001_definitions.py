import uuid

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("tenants", "0001_accounts"),
    ]

    operations = [
        migrations.CreateModel(
            name="Attempt",
            fields=[
                ("fence", models.BigIntegerField(primary_key=True, serialize=False)),
                ("run_id", models.UUIDField()),
                ("due_at", models.DateTimeField()),
                ("number", models.PositiveIntegerField()),
                ("session_id", models.UUIDField()),
                ("worker", models.CharField(max_length=200)),
                ("started_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField(null=True)),
                ("outcome", models.CharField(max_length=10, null=True)),
                ("error", models.JSONField(null=True)),
                ("trace_id", models.CharField(max_length=32, null=True)),
            ],
            options={
                "db_table": "attempt",
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="Occurrence",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("due_at", models.DateTimeField()),
                ("revision", models.PositiveIntegerField()),
                ("origin", models.CharField(max_length=10)),
                ("origin_key", models.UUIDField()),
                ("shard", models.PositiveSmallIntegerField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("PENDING", "PENDING"),
                            ("QUEUED", "QUEUED"),
                            ("RUNNING", "RUNNING"),
                            ("RETRY_WAIT", "RETRY_WAIT"),
                            ("SUSPENDED", "SUSPENDED"),
                            ("SUCCEEDED", "SUCCEEDED"),
                            ("FAILED", "FAILED"),
                            ("DEAD_LETTERED", "DEAD_LETTERED"),
                            ("SKIPPED", "SKIPPED"),
                            ("CANCELLED", "CANCELLED"),
                            ("UNKNOWN", "UNKNOWN"),
                        ],
                        max_length=13,
                    ),
                ),
                ("overlap", models.CharField(max_length=14)),
                ("wait_reason", models.CharField(max_length=20, null=True)),
                ("skip_reason", models.CharField(max_length=10, null=True)),
                ("dispatch_at", models.DateTimeField()),
                ("generation", models.PositiveIntegerField()),
                ("attempt_count", models.PositiveIntegerField()),
                ("attempts_forgiven", models.PositiveIntegerField(default=0)),
                ("fence", models.BigIntegerField(null=True)),
                ("overdue", models.BooleanField()),
                ("coalesced", models.PositiveIntegerField()),
                ("coalesced_from", models.DateTimeField(null=True)),
                ("cancel_requested_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField()),
                ("queued_at", models.DateTimeField(null=True)),
                ("started_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("dismissed_at", models.DateTimeField(null=True)),
                ("result", models.JSONField(null=True)),
                ("error", models.JSONField(null=True)),
                ("progress", models.JSONField(null=True)),
                ("late_writes_refused", models.PositiveIntegerField()),
                ("tzdata_version", models.CharField(max_length=12)),
            ],
            options={
                "verbose_name": "run",
                "db_table": "occurrence",
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="Session",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=8)),
                ("worker", models.CharField(max_length=200)),
                ("capacity", models.PositiveIntegerField()),
                ("busy", models.PositiveIntegerField()),
                ("prefetched", models.PositiveIntegerField()),
                ("started_at", models.DateTimeField()),
                ("renewed_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
            ],
            options={
                "db_table": "session",
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="ShardLease",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=8)),
                ("shard", models.PositiveSmallIntegerField()),
                ("owner", models.UUIDField(null=True)),
                ("epoch", models.BigIntegerField()),
                ("expires_at", models.DateTimeField()),
            ],
            options={
                "db_table": "shard_lease",
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("name", models.CharField(max_length=200)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("active", "Active"),
                            ("paused", "Paused"),
                            ("cancelled", "Cancelled"),
                            ("completed", "Completed"),
                            ("faulted", "Faulted"),
                        ],
                        default="active",
                        max_length=10,
                    ),
                ),
                ("shard", models.PositiveSmallIntegerField(editable=False)),
                ("revision", models.PositiveIntegerField(default=1, editable=False)),
                ("next_due_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("last_due_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("rules_changed_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("state_note", models.TextField(blank=True)),
                ("fault", models.TextField(blank=True)),
                ("created_at", models.DateTimeField()),
                ("updated_at", models.DateTimeField()),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="schedules",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "db_table": "schedule",
            },
        ),
        migrations.CreateModel(
            name="ZoneRules",
            fields=[
                ("zone", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("rules", models.BinaryField()),
                ("tzdata_version", models.CharField(max_length=12)),
            ],
            options={
                "db_table": "zone_rules",
            },
        ),
        migrations.CreateModel(
            name="Calendar",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=100)),
                ("days", models.JSONField(default=list)),
                ("updated_at", models.DateTimeField()),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="calendars",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "db_table": "calendar",
            },
        ),
        migrations.CreateModel(
            name="PauseInterval",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("began_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                ("resumed_from", models.DateTimeField(null=True)),
                ("paused_by", models.CharField(max_length=200)),
                ("note", models.TextField(blank=True)),
                (
                    "schedule",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="pauses",
                        to="scheduler.schedule",
                    ),
                ),
            ],
            options={
                "db_table": "schedule_pause",
            },
        ),
        migrations.CreateModel(
            name="Target",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("name", models.CharField(max_length=200, unique=True)),
                ("kind", models.CharField(choices=[("job", "Job")], default="job", max_length=8)),
                (
                    "side_effects",
                    models.CharField(
                        choices=[("idempotent", "Idempotent"), ("fenced", "Fenced")],
                        default="idempotent",
                        max_length=16,
                    ),
                ),
                ("timeout_s", models.PositiveIntegerField(blank=True, null=True)),
                ("retry", models.JSONField(blank=True, null=True)),
                ("parameters", models.JSONField(blank=True, default=dict)),
                ("description", models.TextField(blank=True)),
                ("everyone", models.BooleanField(default=False)),
                ("enabled", models.BooleanField(default=True)),
                ("created_at", models.DateTimeField()),
                ("tenants", models.ManyToManyField(blank=True, related_name="targets", to="tenants.tenant")),
            ],
            options={
                "db_table": "target",
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="ScheduleRevision",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("number", models.PositiveIntegerField()),
                ("target_name", models.CharField(max_length=200)),
                ("payload", models.JSONField(default=dict)),
                ("payload_ref", models.TextField(blank=True, null=True)),
                ("trigger", models.JSONField()),
                ("start_at", models.DateTimeField(blank=True, null=True)),
                ("end_at", models.DateTimeField(blank=True, null=True)),
                ("max_occurrences", models.PositiveIntegerField(blank=True, null=True)),
                ("exclusions", models.JSONField(blank=True, default=list)),
                (
                    "on_excluded",
                    models.CharField(
                        choices=[("skip", "skip"), ("next_business_day", "next_business_day")],
                        default="skip",
                        max_length=20,
                    ),
                ),
                ("calendars", models.JSONField(blank=True, default=dict)),
                ("flexible_window_s", models.PositiveIntegerField(default=0)),
                (
                    "mode",
                    models.CharField(
                        choices=[("fixed_rate", "fixed_rate"), ("fixed_delay", "fixed_delay")],
                        default="fixed_rate",
                        max_length=20,
                    ),
                ),
                (
                    "catch_up",
                    models.CharField(
                        choices=[
                            ("run_latest_only", "run_latest_only"),
                            ("run_all", "run_all"),
                            ("skip", "skip"),
                        ],
                        default="run_latest_only",
                        max_length=20,
                    ),
                ),
                ("catch_up_limit", models.PositiveIntegerField(default=100)),
                ("catch_up_window_s", models.PositiveIntegerField(blank=True, null=True)),
                ("catch_up_after_s", models.PositiveIntegerField(default=60)),
                (
                    "overlap",
                    models.CharField(
                        choices=[
                            ("skip", "skip"),
                            ("buffer_one", "buffer_one"),
                            ("buffer_all", "buffer_all"),
                            ("cancel_running", "cancel_running"),
                            ("allow", "allow"),
                        ],
                        default="skip",
                        max_length=20,
                    ),
                ),
                ("buffer_limit", models.PositiveIntegerField(default=1000)),
                ("retry", models.JSONField(default=dict)),
                ("timeout_s", models.PositiveIntegerField(default=300)),
                ("cancel_grace_s", models.PositiveIntegerField(default=30)),
                ("late_after_s", models.PositiveIntegerField(default=30)),
                ("priority", models.CharField(default="normal", max_length=8)),
                ("tags", models.JSONField(default=list)),
                ("description", models.TextField(blank=True)),
                ("created_at", models.DateTimeField()),
                ("created_by", models.CharField(max_length=200)),
                ("effective_from", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "schedule",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="revisions",
                        to="scheduler.schedule",
                    ),
                ),
                (
                    "target",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="scheduler.target"
                    ),
                ),
            ],
            options={
                "db_table": "schedule_revision",
            },
        ),
        migrations.AddIndex(
            model_name="schedule",
            index=models.Index(
                condition=models.Q(("next_due_at__isnull", False), ("state", "active")),
                fields=["shard", "next_due_at"],
                name="schedule_due",
            ),
        ),
        migrations.AddIndex(
            model_name="schedule",
            index=models.Index(
                condition=models.Q(("next_due_at__isnull", True), ("state", "active")),
                fields=["shard"],
                name="schedule_resting",
            ),
        ),
        migrations.AddConstraint(
            model_name="calendar",
            constraint=models.UniqueConstraint(fields=("tenant", "name"), name="calendar_name_once"),
        ),
        migrations.AddIndex(
            model_name="schedule",
            index=models.Index(fields=["tenant", "-created_at", "-id"], name="schedule_by_tenant"),
        ),
        migrations.AddConstraint(
            model_name="schedule",
            constraint=models.CheckConstraint(
                condition=models.Q(("state__in", ["active", "paused", "cancelled", "completed", "faulted"])),
                name="schedule_state",
            ),
        ),
        migrations.AddConstraint(
            model_name="schedule",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state", "cancelled"), _negated=True),
                fields=("tenant", "name"),
                name="schedule_name_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="pauseinterval",
            constraint=models.UniqueConstraint(
                condition=models.Q(("ended_at__isnull", True)),
                fields=("schedule",),
                name="schedule_pause_open_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="target",
            constraint=models.CheckConstraint(condition=models.Q(("kind__in", ["job"])), name="target_kind"),
        ),
        migrations.AddConstraint(
            model_name="target",
            constraint=models.CheckConstraint(
                condition=models.Q(("side_effects__in", ["idempotent", "fenced"])), name="target_effects"
            ),
        ),
        migrations.AddConstraint(
            model_name="schedulerevision",
            constraint=models.UniqueConstraint(fields=("schedule", "number"), name="schedule_revision_once"),
        ),
        migrations.AddConstraint(
            model_name="schedulerevision",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "overlap__in",
                        [
                            "skip",
                            "buffer_one",
                            "buffer_all",
                            "cancel_running",
                            "allow",
                        ],
                    )
                ),
                name="revision_overlap",
            ),
        ),
        migrations.AddConstraint(
            model_name="schedulerevision",
            constraint=models.CheckConstraint(
                condition=models.Q(("catch_up__in", ["run_latest_only", "run_all", "skip"])),
                name="revision_catch_up",
            ),
        ),
        migrations.AddConstraint(
            model_name="schedulerevision",
            constraint=models.CheckConstraint(
                condition=models.Q(("mode__in", ["fixed_rate", "fixed_delay"])), name="revision_mode"
            ),
        ),
    ]
