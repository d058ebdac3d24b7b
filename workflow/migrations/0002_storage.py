"""Room for heap-only updates, and vacuuming that keeps up with a queue."""

from django.db import migrations

TABLES = {
    # Rows that are updated many times while a run lives, hardly ever afterwards.
    "workflow_run": "fillfactor = 50",
    "workflow_node": "fillfactor = 70",
    # A queue: every row is inserted, claimed, stamped and deleted within a short time.
    "workflow_job": "fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, "
    "autovacuum_vacuum_cost_delay = 0",
    "workflow_step": "fillfactor = 80",
}


def _reset(settings: str) -> str:
    return ", ".join(setting.split("=")[0].strip() for setting in settings.split(","))


class Migration(migrations.Migration):
    dependencies = [("workflow", "0001_initial")]

    operations = [
        migrations.RunSQL(
            sql=f"ALTER TABLE {table} SET ({settings})",
            reverse_sql=f"ALTER TABLE {table} RESET ({_reset(settings)})",
        )
        for table, settings in TABLES.items()
    ]
