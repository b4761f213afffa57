"""Limits of time and of failures: how long a run may wait, be tried, be silent, and fail in a row."""

from django.db import migrations, models

OCCURRENCE = """
ALTER TABLE occurrence
    -- Where a person asked for it anew: from here its retry deadline counts, instead of from due_at.
    ADD COLUMN counts_from timestamptz,
    ADD COLUMN dead_letter_reason varchar(10),
    -- When the hook of its job is next asked how a run of unknown outcome ended, and how often it was.
    ADD COLUMN reconcile_at timestamptz,
    ADD COLUMN reconcile_tries integer NOT NULL DEFAULT 0,
    ADD CONSTRAINT occurrence_dead_letter CHECK (
        dead_letter_reason IS NULL
        OR state = 'DEAD_LETTERED' AND dead_letter_reason IN ('exhausted', 'expired'));

UPDATE occurrence SET reconcile_at = clock_timestamp() WHERE state = 'UNKNOWN';
-- store/unknown.sql: look
CREATE INDEX occurrence_unknown ON occurrence (reconcile_at) WHERE state = 'UNKNOWN';
-- store/failures.sql: lately_dead
CREATE INDEX occurrence_dead ON occurrence (finished_at) WHERE state = 'DEAD_LETTERED';
"""

LEASE = """
-- Of jobs that promised to report: how long they may be silent, and when the silence will have been too long.
ALTER TABLE lease ADD COLUMN silence_s integer, ADD COLUMN silent_by timestamptz;
-- store/sweep.sql: overdue_leases
CREATE INDEX lease_silent_by ON lease (silent_by) WHERE silent_by IS NOT NULL;
"""

BACKWARD = """
ALTER TABLE lease DROP COLUMN silence_s, DROP COLUMN silent_by;
ALTER TABLE occurrence DROP COLUMN counts_from, DROP COLUMN dead_letter_reason,
    DROP COLUMN reconcile_at, DROP COLUMN reconcile_tries;
DROP INDEX occurrence_dead;
"""

STATE = [
    migrations.AddField("occurrence", "counts_from", models.DateTimeField(null=True)),
    migrations.AddField("occurrence", "dead_letter_reason", models.CharField(max_length=10, null=True)),
    migrations.AddField("occurrence", "reconcile_at", models.DateTimeField(null=True)),
    migrations.AddField("occurrence", "reconcile_tries", models.PositiveIntegerField(default=0)),
]


def _seconds(model: str, name: str) -> migrations.AddField:
    return migrations.AddField(model, name, models.PositiveIntegerField(null=True, blank=True))


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0007_http_targets")]

    operations = [
        migrations.RunSQL(OCCURRENCE + LEASE, BACKWARD, state_operations=STATE),
        _seconds("schedulerevision", "schedule_to_start_s"),
        _seconds("schedulerevision", "heartbeat_timeout_s"),
        _seconds("schedulerevision", "pause_after"),
        _seconds("target", "cancel_grace_s"),
    ]
