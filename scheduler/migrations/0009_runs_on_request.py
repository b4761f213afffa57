"""Runs that code asks for have a payload of their own, and a schedule that exists only to hold them.

A revision's trigger has exactly one kind, on whatever road it comes to the table.
"""

import django.db.models.deletion
from django.db import migrations, models

PAYLOAD = "ALTER TABLE occurrence ADD COLUMN payload jsonb"

ONE_KIND = """
ALTER TABLE schedule_revision ADD CONSTRAINT revision_trigger CHECK (
    coalesce(jsonb_typeof(trigger) = 'object' AND (
        (trigger ? 'once')::int + (trigger ? 'cron')::int
        + (trigger ? 'interval')::int + (trigger ? 'rrule')::int
    ) = 1 AND trigger - '{once,cron,interval,rrule}'::text[] = '{}', false)
)
"""


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0008_limits")]

    operations = [
        migrations.RunSQL(
            PAYLOAD,
            "ALTER TABLE occurrence DROP COLUMN payload",
            state_operations=[migrations.AddField("occurrence", "payload", models.JSONField(null=True))],
        ),
        migrations.AddField(
            "schedule",
            "on_request_of",
            models.ForeignKey(
                blank=True,
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="scheduler.target",
            ),
        ),
        migrations.AddConstraint(
            "schedule",
            models.UniqueConstraint(
                fields=["tenant", "on_request_of"],
                condition=models.Q(on_request_of__isnull=False) & ~models.Q(state="cancelled"),
                name="schedule_on_request_once",
            ),
        ),
        migrations.RemoveConstraint("target", "target_kind"),
        migrations.AlterField(
            "target",
            "kind",
            models.CharField(
                choices=[("job", "Job"), ("http", "HTTP"), ("task", "Task")], default="job", max_length=8
            ),
        ),
        migrations.AddConstraint(
            "target",
            models.CheckConstraint(
                condition=models.Q(("kind__in", ["job", "http", "task"])), name="target_kind"
            ),
        ),
        migrations.RemoveConstraint("target", "target_url"),
        migrations.AddConstraint(
            "target",
            models.CheckConstraint(
                condition=(
                    models.Q(("kind", "http")) & ~models.Q(("url", ""))
                    | ~models.Q(("kind", "http")) & models.Q(("url", ""))
                ),
                name="target_url",
            ),
        ),
        migrations.RunSQL(ONE_KIND, "ALTER TABLE schedule_revision DROP CONSTRAINT revision_trigger"),
    ]
