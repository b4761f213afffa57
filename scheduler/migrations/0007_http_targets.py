"""Targets may be HTTP endpoints, a tenant's own too; a run that one has accepted outlives its worker."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q

LEASE = """
-- Where it is set, the lease is held by no session but by the endpoint that has accepted the run.
ALTER TABLE lease ADD COLUMN expires_at timestamptz,
    ADD CONSTRAINT lease_holder CHECK (
        expires_at IS NULL OR session_id = '00000000-0000-0000-0000-000000000000');
"""

LEASE_BACK = "ALTER TABLE lease DROP COLUMN expires_at"

WAITS = """
ALTER TABLE occurrence DROP CONSTRAINT occurrence_wait_reason,
    ADD CONSTRAINT occurrence_wait_reason CHECK (wait_reason IN (
        'due', 'overlap', 'tenant_concurrency', 'tenant_rate', 'catch_up_budget', 'endpoint_busy'));
"""

WAITS_BACK = """
UPDATE occurrence SET wait_reason = 'due' WHERE wait_reason = 'endpoint_busy';
ALTER TABLE occurrence DROP CONSTRAINT occurrence_wait_reason,
    ADD CONSTRAINT occurrence_wait_reason CHECK (wait_reason IN (
        'due', 'overlap', 'tenant_concurrency', 'tenant_rate', 'catch_up_budget'));
"""


# The defaults in the database are for a process of the version before, which knows none of these columns.
TARGET = [
    migrations.AlterField("target", "name", models.CharField(max_length=200)),
    migrations.AlterField(
        "target",
        "kind",
        models.CharField(choices=[("job", "Job"), ("http", "HTTP")], default="job", max_length=8),
    ),
    migrations.AddField(
        "target",
        "owner",
        models.ForeignKey(
            "tenants.tenant",
            blank=True,
            null=True,
            on_delete=django.db.models.deletion.PROTECT,
            related_name="own_targets",
        ),
    ),
    migrations.AddField("target", "url", models.CharField(blank=True, db_default="", max_length=2000)),
    migrations.AddField("target", "sealed", models.TextField(blank=True, db_default="", editable=False)),
    migrations.AddField("target", "heartbeat_timeout_s", models.PositiveIntegerField(blank=True, null=True)),
    migrations.RemoveConstraint("target", "target_kind"),
    migrations.AddConstraint(
        "target", models.CheckConstraint(condition=Q(kind__in=["job", "http"]), name="target_kind")
    ),
    migrations.AddConstraint(
        "target",
        models.CheckConstraint(
            condition=(Q(kind="http") & ~Q(url="")) | (Q(kind="job") & Q(url="")), name="target_url"
        ),
    ),
    migrations.AddConstraint(
        "target",
        models.UniqueConstraint(condition=Q(owner__isnull=True), fields=["name"], name="target_name_once"),
    ),
    migrations.AddConstraint(
        "target", models.UniqueConstraint(fields=["owner", "name"], name="target_name_once_an_owner")
    ),
]

LEASE_MODEL = migrations.CreateModel(
    "Lease",
    [
        ("run_id", models.UUIDField(primary_key=True, serialize=False)),
        ("due_at", models.DateTimeField()),
        ("session_id", models.UUIDField()),
        ("fence", models.BigIntegerField()),
        ("expires_at", models.DateTimeField(null=True)),
    ],
    options={"db_table": "lease", "managed": False},
)


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0006_unknown_outcomes"), ("tenants", "0001_accounts")]

    operations = [
        migrations.RunSQL(LEASE, LEASE_BACK),
        migrations.RunSQL(WAITS, WAITS_BACK),
        *TARGET,
        LEASE_MODEL,
    ]
