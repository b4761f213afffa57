"""Runs of unknown outcome can be reconciled, and the database itself refuses to repeat an unsafe effect."""

from django.db import migrations, models

SIDE_EFFECTS = ["idempotent", "fenced", "unsafe_external"]

COLUMN = "ALTER TABLE occurrence ADD COLUMN reconciled_at timestamptz"

REFUSAL = """
CREATE FUNCTION occurrence_unsafe() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM schedule_revision r JOIN target t ON t.id = r.target_id
        WHERE r.schedule_id = NEW.schedule_id AND r.number = NEW.revision
          AND t.side_effects = 'unsafe_external')
    THEN
        RAISE EXCEPTION 'run %: an attempt at an unsafe_external target is not repeated by itself', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'occurrence_unsafe';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER occurrence_unsafe BEFORE UPDATE OF state ON occurrence
    FOR EACH ROW WHEN (OLD.state = 'RUNNING' AND NEW.state IN ('RETRY_WAIT', 'QUEUED'))
    EXECUTE FUNCTION occurrence_unsafe();
"""

BACKWARD = """
DROP TRIGGER occurrence_unsafe ON occurrence;
DROP FUNCTION occurrence_unsafe();
"""


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0005_counts_are_kept")]

    operations = [
        migrations.RunSQL(
            COLUMN,
            "ALTER TABLE occurrence DROP COLUMN reconciled_at",
            state_operations=[
                migrations.AddField("occurrence", "reconciled_at", models.DateTimeField(null=True))
            ],
        ),
        migrations.RunSQL(REFUSAL, BACKWARD),
        migrations.RemoveConstraint("target", "target_effects"),
        migrations.AlterField(
            "target",
            "side_effects",
            models.CharField(
                choices=[(name, name.replace("_", " ").title()) for name in SIDE_EFFECTS],
                default="idempotent",
                max_length=16,
            ),
        ),
        migrations.AddConstraint(
            "target",
            models.CheckConstraint(
                condition=models.Q(("side_effects__in", SIDE_EFFECTS)), name="target_effects"
            ),
        ),
    ]
