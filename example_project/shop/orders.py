"""The orders file, and how its rows become rows of the shop.

`orders.json` holds what the shop sells and some 250 orders. Each order has a `kind`, which says what will
come of it; the kinds are listed in `KINDS`, and the demo holds every run against them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now
from pydantic import BaseModel

from .models import Order, OrderLine, Product, StockMove

FILE = Path(__file__).with_name("orders.json")


@dataclass(frozen=True)
class Kind:
    """What a kind of order meets on its way, and how its run must end (None: some this way, some that)."""

    text: str
    ends: str | None


KINDS = {
    "plain": Kind("nothing out of the ordinary", "completed"),
    "flaky-carrier": Kind("the carrier fails twice, then answers", "completed"),
    "last-pieces": Kind("more buyers than pieces", None),
    "out-of-stock": Kind("a line that the shelf cannot serve", "compensated"),
    "over-limit": Kind("too dear to be paid by card", "compensated"),
    "declined": Kind("the card is declined", "compensated"),
    "never-pays": Kind("the payment never comes", "compensated"),
    "undeliverable": Kind("the carrier refuses the address", "compensated"),
}


class ProductRow(BaseModel):
    sku: str
    name: str
    price: Decimal
    stock: int

    @property
    def price_cents(self) -> int:
        return int(self.price * 100)


class OrderRow(BaseModel):
    number: int
    kind: str
    customer: str
    email: str
    address: str
    country: str
    card: str
    carrier: str
    lines: list[tuple[str, int]]
    total: Decimal


class OrdersFile(BaseModel):
    products: list[ProductRow]
    orders: list[OrderRow]


@cache
def orders_file() -> OrdersFile:
    return OrdersFile.model_validate_json(FILE.read_bytes())


@transaction.atomic
def open_branch(branch: str) -> None:
    """Empties a branch and stocks it up as the file says. Rows of other branches stay as they are."""
    Order.objects.filter(branch=branch).delete()
    Product.objects.filter(branch=branch).delete()
    rows = orders_file().products
    products = Product.objects.bulk_create(
        Product(branch=branch, sku=row.sku, name=row.name, price_cents=row.price_cents, quantity=row.stock)
        for row in rows
    )
    StockMove.objects.bulk_create(
        StockMove(product=product, kind=StockMove.Kind.RECEIVED, quantity=product.quantity)
        for product in products
    )


@transaction.atomic
def restock(branch: str) -> None:
    """Fills up what has run low, to what the file says; a product that the file calls sold out stays so."""
    full = {row.sku: row.stock for row in orders_file().products}
    for product in Product.objects.filter(branch=branch):
        missing = full.get(product.sku, 0) - product.quantity
        if missing * 2 > full.get(product.sku, 0):
            Product.objects.filter(pk=product.pk).update(quantity=F("quantity") + missing)
            StockMove.objects.create(product=product, kind=StockMove.Kind.RECEIVED, quantity=missing)


def forget_old(branch: str, age: timedelta) -> int:
    """Deletes orders older than `age` and all that is theirs, but for the stock journal."""
    _, deleted = Order.objects.filter(branch=branch, placed_at__lt=Now() - age).delete()
    return deleted.get(Order._meta.label, 0)


@transaction.atomic
def place(branch: str, rows: Iterable[OrderRow], prefix: str) -> list[Order]:
    """Writes the orders into the books of a branch; an order's id is `<prefix>-<number>`."""
    products = {product.sku: product for product in Product.objects.filter(branch=branch)}
    orders: list[Order] = []
    lines: list[OrderLine] = []
    for row in rows:
        order = Order(
            id=f"{prefix}-{row.number}",
            branch=branch,
            kind=row.kind,
            customer=row.customer,
            email=row.email,
            address=row.address,
            country=row.country,
            card=row.card,
            carrier=row.carrier,
        )
        orders.append(order)
        for sku, quantity in row.lines:
            product = products[sku]
            lines.append(
                OrderLine(order=order, product=product, quantity=quantity, price_cents=product.price_cents)
            )
    Order.objects.bulk_create(orders)
    OrderLine.objects.bulk_create(lines)
    return orders
