"""The trigger that tells workers of new jobs looks at them no more: each statement that adds jobs rings."""

import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("workflow", "0003_dispatch_function")]

    operations = [
        pgtrigger.migrations.RemoveTrigger(model_name="job", name="job_notify"),
        pgtrigger.migrations.AddTrigger(
            model_name="job",
            trigger=pgtrigger.compiler.Trigger(
                name="job_notify",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    func="PERFORM pg_notify('workflow_job', ''); RETURN NULL;",
                    hash="05bd4e44abcaa6b14eb26341018ce6f83a59dac9",
                    level="STATEMENT",
                    operation="INSERT",
                    pgid="pgtrigger_job_notify_83fc8",
                    table="workflow_job",
                    when="AFTER",
                ),
            ),
        ),
    ]
