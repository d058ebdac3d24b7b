"""When a message was last sent for a job. A nullable column without a default: no row is rewritten."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("workflow", "0006_guards_after_the_update"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="rung_at",
            field=models.DateTimeField(null=True),
        ),
    ]
