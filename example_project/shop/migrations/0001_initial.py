import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("branch", models.CharField(db_index=True, max_length=20)),
                (
                    "kind",
                    models.CharField(help_text="What the orders file says will happen to it.", max_length=20),
                ),
                ("customer", models.CharField(max_length=80)),
                ("email", models.CharField(blank=True, max_length=120)),
                ("address", models.CharField(max_length=160)),
                ("country", models.CharField(max_length=2)),
                ("card", models.CharField(max_length=30)),
                ("carrier", models.CharField(max_length=30)),
                ("placed_at", models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.CreateModel(
            name="Message",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("key", models.CharField(max_length=255, unique=True)),
                ("to", models.CharField(max_length=120)),
                ("subject", models.CharField(max_length=160)),
                (
                    "order",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="messages", to="shop.order"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Label",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("text", models.TextField()),
                ("torn_up", models.BooleanField(default=False)),
                (
                    "order",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="labels", to="shop.order"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Payment",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "key",
                    models.CharField(
                        help_text="Idempotency key: one key, one charge.", max_length=255, unique=True
                    ),
                ),
                ("amount_cents", models.PositiveIntegerField()),
                ("card", models.CharField(max_length=30)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("succeeded", "Succeeded"),
                            ("declined", "Declined"),
                            ("voided", "Voided"),
                        ],
                        max_length=10,
                    ),
                ),
                (
                    "requests",
                    models.PositiveIntegerField(
                        default=1, help_text="How often the shop asked with this key."
                    ),
                ),
                (
                    "announced",
                    models.PositiveIntegerField(
                        default=0, help_text="How often the webhook was called about it."
                    ),
                ),
                (
                    "order",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="payments", to="shop.order"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Product",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("branch", models.CharField(max_length=20)),
                ("sku", models.CharField(max_length=20)),
                ("name", models.CharField(max_length=80)),
                ("price_cents", models.PositiveIntegerField()),
                (
                    "quantity",
                    models.IntegerField(default=0, help_text="Pieces on the shelf that nobody has reserved."),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("branch", "sku"), name="shop_product_sku"),
                    models.CheckConstraint(
                        condition=models.Q(("quantity__gte", 0)), name="shop_product_not_oversold"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="OrderLine",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("quantity", models.PositiveIntegerField()),
                (
                    "price_cents",
                    models.PositiveIntegerField(help_text="Price of one piece on the day of the order."),
                ),
                (
                    "order",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="lines", to="shop.order"
                    ),
                ),
                (
                    "product",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="shop.product"),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Shipment",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "key",
                    models.CharField(
                        help_text="Idempotency key: one key, one parcel.", max_length=255, unique=True
                    ),
                ),
                ("carrier", models.CharField(max_length=30)),
                ("tracking", models.CharField(blank=True, max_length=30)),
                (
                    "requests",
                    models.PositiveIntegerField(
                        default=0, help_text="How often the shop asked with this key."
                    ),
                ),
                (
                    "order",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="shipments", to="shop.order"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="StockMove",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("received", "Received"),
                            ("reserved", "Reserved"),
                            ("released", "Released"),
                        ],
                        max_length=10,
                    ),
                ),
                ("quantity", models.IntegerField(help_text="Positive onto the shelf, negative off it.")),
                (
                    "order",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="stock_moves",
                        to="shop.order",
                    ),
                ),
                (
                    "product",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="moves", to="shop.product"
                    ),
                ),
            ],
        ),
    ]
