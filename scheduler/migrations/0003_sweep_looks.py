"""When a sweep last looked is remembered: a sweep that begins after an outage must see the gap too."""

from django.db import migrations

FORWARD = """
ALTER TABLE sweep_turn
    ADD COLUMN looked_at timestamptz NOT NULL DEFAULT '-infinity',
    ADD COLUMN held_until timestamptz NOT NULL DEFAULT '-infinity';
"""

BACKWARD = "ALTER TABLE sweep_turn DROP COLUMN looked_at, DROP COLUMN held_until;"


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0002_ledger")]

    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
