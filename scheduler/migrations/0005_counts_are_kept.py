"""What counts towards `max_occurrences` for good is kept: runs are counted anew only since then."""

from django.db import migrations, models

FORWARD = """
ALTER TABLE schedule
    ADD COLUMN counted_runs integer NOT NULL DEFAULT 0 CHECK (counted_runs >= 0),
    ADD COLUMN counted_until timestamptz;

CREATE OR REPLACE FUNCTION fencepost_counted_runs(counted_schedule uuid) RETURNS integer
LANGUAGE sql STABLE AS $$
    SELECT s.counted_runs + (
        SELECT count(*)::integer FROM occurrence o
        WHERE o.schedule_id = s.id AND o.origin = 'schedule' AND o.state <> 'SKIPPED'
          AND o.due_at > coalesce(s.counted_until, '-infinity'))
    FROM schedule s WHERE s.id = counted_schedule
$$;
"""

BACKWARD = """
CREATE OR REPLACE FUNCTION fencepost_counted_runs(counted_schedule uuid) RETURNS integer
LANGUAGE sql STABLE AS $$
    SELECT count(*)::integer FROM occurrence o
    WHERE o.schedule_id = counted_schedule AND o.origin = 'schedule' AND o.state <> 'SKIPPED'
$$;
ALTER TABLE schedule DROP COLUMN counted_runs, DROP COLUMN counted_until;
"""

STATE = [
    migrations.AddField("schedule", "counted_runs", models.PositiveIntegerField(default=0, editable=False)),
    migrations.AddField(
        "schedule", "counted_until", models.DateTimeField(null=True, blank=True, editable=False)
    ),
]


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0004_calendars_have_revisions")]

    operations = [migrations.RunSQL(FORWARD, BACKWARD, state_operations=STATE)]
