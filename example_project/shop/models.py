"""The books of a small tea and coffee shop.

The first half is the shop's own: products, the stock journal, orders, labels, messages. The second half
plays two companies that the shop talks to, the payment provider and the parcel carriers. They live in the
same database only so that the example needs no network; the shop reaches them through `gateway` and
`carrier` alone.

An order has no status of its own: how far it is, is what its workflow run says.

A *branch* is one counter of the shop with its own shelf. The demo, the stream and the tests each open a
branch, so they never sell each other's tea.
"""

from __future__ import annotations

from django.db import models


class Product(models.Model):
    branch = models.CharField(max_length=20)
    sku = models.CharField(max_length=20)
    name = models.CharField(max_length=80)
    price_cents = models.PositiveIntegerField()
    quantity = models.IntegerField(default=0, help_text="Pieces on the shelf that nobody has reserved.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["branch", "sku"], name="shop_product_sku"),
            models.CheckConstraint(condition=models.Q(quantity__gte=0), name="shop_product_not_oversold"),
        ]

    def __str__(self) -> str:
        return self.name


class Order(models.Model):
    id = models.CharField(primary_key=True, max_length=32)
    branch = models.CharField(max_length=20, db_index=True)
    kind = models.CharField(max_length=20, help_text="What the orders file says will happen to it.")
    customer = models.CharField(max_length=80)
    email = models.CharField(max_length=120, blank=True)
    address = models.CharField(max_length=160)
    country = models.CharField(max_length=2)
    card = models.CharField(max_length=30)
    carrier = models.CharField(max_length=30)
    placed_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.id} ({self.customer})"

    @property
    def total_cents(self) -> int:
        return sum(line.quantity * line.price_cents for line in self.lines.all())


class OrderLine(models.Model):
    order = models.ForeignKey(Order, models.CASCADE, related_name="lines")
    product = models.ForeignKey(Product, models.CASCADE)
    quantity = models.PositiveIntegerField()
    price_cents = models.PositiveIntegerField(help_text="Price of one piece on the day of the order.")

    def __str__(self) -> str:
        return f"{self.quantity} x {self.product}"


class StockMove(models.Model):
    """A line of the stock journal: added, never changed. A product's moves add up to its quantity.

    Nothing here forbids a second reservation for the same order: that it never happens is the workflow's
    doing (`atomic=True`), and the demo counts the lines to prove it.
    """

    class Kind(models.TextChoices):
        RECEIVED = "received"
        RESERVED = "reserved"
        RELEASED = "released"

    product = models.ForeignKey(Product, models.CASCADE, related_name="moves")
    order = models.ForeignKey(Order, models.SET_NULL, null=True, related_name="stock_moves")
    kind = models.CharField(max_length=10, choices=Kind)
    quantity = models.IntegerField(help_text="Positive onto the shelf, negative off it.")

    def __str__(self) -> str:
        return f"{self.kind} {self.quantity:+d} {self.product}"


class Label(models.Model):
    """A printed parcel label. Printing twice would give two rows; the demo checks that it never does."""

    order = models.ForeignKey(Order, models.CASCADE, related_name="labels")
    text = models.TextField()
    torn_up = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"Label for {self.order_id}"


class Message(models.Model):
    """The outbox for mails. `key` is the message id: mail servers drop a second message with the same id."""

    key = models.CharField(max_length=255, unique=True)
    order = models.ForeignKey(Order, models.CASCADE, related_name="messages")
    to = models.CharField(max_length=120)
    subject = models.CharField(max_length=160)

    def __str__(self) -> str:
        return self.subject


class Payment(models.Model):
    """The payment provider's record of a charge (see `gateway`)."""

    class Status(models.TextChoices):
        PENDING = "pending"  # accepted, the customer's bank has not confirmed it yet
        SUCCEEDED = "succeeded"
        DECLINED = "declined"
        VOIDED = "voided"

    key = models.CharField(max_length=255, unique=True, help_text="Idempotency key: one key, one charge.")
    order = models.ForeignKey(Order, models.CASCADE, related_name="payments")
    amount_cents = models.PositiveIntegerField()
    card = models.CharField(max_length=30)
    status = models.CharField(max_length=10, choices=Status)
    requests = models.PositiveIntegerField(default=1, help_text="How often the shop asked with this key.")
    announced = models.PositiveIntegerField(default=0, help_text="How often the webhook was called about it.")

    def __str__(self) -> str:
        return f"{self.amount_cents / 100:.2f} EUR {self.status}"


class Shipment(models.Model):
    """A carrier's record of a parcel (see `carrier`); no tracking number: asked for, but not booked."""

    key = models.CharField(max_length=255, unique=True, help_text="Idempotency key: one key, one parcel.")
    order = models.ForeignKey(Order, models.CASCADE, related_name="shipments")
    carrier = models.CharField(max_length=30)
    tracking = models.CharField(max_length=30, blank=True)
    requests = models.PositiveIntegerField(default=0, help_text="How often the shop asked with this key.")

    def __str__(self) -> str:
        return self.tracking or "not booked"
