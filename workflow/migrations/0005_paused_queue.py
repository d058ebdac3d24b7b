import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("workflow", "0004_job_notify"),
    ]

    operations = [
        migrations.CreateModel(
            name="PausedQueue",
            fields=[
                ("queue", models.CharField(max_length=100, primary_key=True, serialize=False)),
                ("until", models.DateTimeField(blank=True, null=True)),
                ("reason", models.TextField(blank=True, db_default="", default="")),
                ("by", models.TextField(blank=True, null=True)),
                ("paused_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("queue", "#events"), _negated=True),
                        name="workflow_pausedqueue_not_events",
                    )
                ],
            },
        ),
    ]
