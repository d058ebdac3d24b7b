"""The shelf: taking goods off it for an order, and putting them back."""

from __future__ import annotations

from django.db import transaction
from django.db.models import F

from .models import Order, Product, StockMove


class OutOfStock(Exception):
    """A line of the order asks for more than the shelf holds."""


@transaction.atomic
def reserve(order: Order) -> None:
    """Takes every line of the order off the shelf, or none.

    The condition stands in the UPDATE itself, so two workers cannot both sell the last piece. Products
    are taken in the order of their ids, whatever the order of the lines, so two orders that share goods
    cannot block each other for ever.
    """
    for line in order.lines.select_related("product").order_by("product_id"):
        taken = Product.objects.filter(pk=line.product_id, quantity__gte=line.quantity).update(
            quantity=F("quantity") - line.quantity
        )
        if not taken:
            raise OutOfStock(f"{line.product.name}: {line.quantity} wanted, the shelf holds fewer")
        StockMove.objects.create(
            product_id=line.product_id, order=order, kind=StockMove.Kind.RESERVED, quantity=-line.quantity
        )


@transaction.atomic
def release(order: Order) -> None:
    """Puts back what the order had reserved; a second call finds nothing left to put back."""
    # Two calls for one order (a worker died before it could say that it was done) queue up here.
    Order.objects.select_for_update().get(pk=order.pk)
    if order.stock_moves.filter(kind=StockMove.Kind.RELEASED).exists():
        return
    for move in order.stock_moves.filter(kind=StockMove.Kind.RESERVED).order_by("product_id"):
        Product.objects.filter(pk=move.product_id).update(quantity=F("quantity") - move.quantity)
        StockMove.objects.create(
            product_id=move.product_id, order=order, kind=StockMove.Kind.RELEASED, quantity=-move.quantity
        )
