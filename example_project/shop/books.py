"""Does the shop add up? Holds a branch's rows against how its orders' runs ended.

`audit` looks at the shop's tables only, the way an accountant would; the engine's word is taken for
nothing but the status of each run. Every check is one sentence, which is either true or comes with the
rows that contradict it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from django.db.models import Sum

from .models import Label, Message, Order, OrderLine, Payment, Product, Shipment, StockMove
from .orders import KINDS

K = TypeVar("K")

COMPLETED = "completed"
COMPENSATED = "compensated"


@dataclass(frozen=True)
class Check:
    text: str
    faults: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.faults


def audit(branch: str, ended: Mapping[str, str]) -> list[Check]:
    """All checks of a branch. `ended` is the status of each order's run, by the order's id."""
    return list(Books(branch, ended).checks())


class Books:
    def __init__(self, branch: str, ended: Mapping[str, str]) -> None:
        self.branch = branch
        self.ended = ended
        self.orders = {order.pk: order for order in Order.objects.filter(branch=branch)}
        self.products = list(Product.objects.filter(branch=branch).order_by("id"))
        self.lines = list(OrderLine.objects.filter(order__branch=branch))
        self.moves = list(StockMove.objects.filter(product__branch=branch))
        self.payments = list(Payment.objects.filter(order__branch=branch))

    def checks(self) -> Iterator[Check]:
        yield self.ends_as_filed()
        yield self.last_pieces()
        yield self.stock_balances()
        yield self.journal_balances()
        yield self.reserved_once()
        yield self.voided()
        yield self.charged_once()
        yield self.money_balances()
        yield self.one_parcel_each()
        yield self.one_label_each()
        yield self.mails()

    def with_status(self, status: str) -> set[str]:
        return {pk for pk in self.orders if self.ended.get(pk) == status}

    @cached_property
    def sold(self) -> Counter[int]:
        """Pieces of each product (by id) in the orders that completed."""
        completed = self.with_status(COMPLETED)
        return _sum((line.product_id, line.quantity) for line in self.lines if line.order_id in completed)

    def ends_as_filed(self) -> Check:
        faults = []
        for order in self.orders.values():
            expected, status = KINDS[order.kind].ends, self.ended.get(order.pk, "never dispatched")
            if status not in ((COMPLETED, COMPENSATED) if expected is None else (expected,)):
                faults.append(f"{order.pk} ({order.kind}) is {status}")
        return Check(f"each of the {len(self.orders)} orders ended as its kind says", faults)

    def last_pieces(self) -> Check:
        """Products that more people wanted than there are: sold to the last piece, and not one more."""
        start = self._moved(StockMove.Kind.RECEIVED)
        asked = _sum(
            (line.product_id, line.quantity)
            for line in self.lines
            if self.orders[line.order_id].kind == "last-pieces"
        )
        scarce = [product for product in self.products if asked[product.pk] > start[product.pk]]
        faults = [
            f"{product.sku}: {self.sold[product.pk]} of {start[product.pk]} sold"
            for product in scarce
            if self.sold[product.pk] != start[product.pk]
        ]
        pieces, buyers = (sum(count[product.pk] for product in scarce) for count in (start, asked))
        return Check(f"the last {pieces} pieces that {buyers} buyers wanted were sold, each once", faults)

    def stock_balances(self) -> Check:
        start, left = self._moved(StockMove.Kind.RECEIVED), Counter({p.pk: p.quantity for p in self.products})
        faults = [
            f"{p.sku}: {start[p.pk]} at start, {self.sold[p.pk]} sold, {left[p.pk]} left"
            for p in self.products
            if start[p.pk] != self.sold[p.pk] + left[p.pk]
        ]
        total = f"{sum(self.sold.values())} + {sum(left.values())} = {sum(start.values())}"
        return Check(f"stock sold + stock left = stock at start ({total})", faults)

    def journal_balances(self) -> Check:
        journal = _sum((move.product_id, move.quantity) for move in self.moves)
        faults = [
            f"{p.sku}: the journal says {journal[p.pk]}, the shelf {p.quantity}"
            for p in self.products
            if journal[p.pk] != p.quantity
        ]
        return Check(f"the shelf is what the {len(self.moves)} lines of the stock journal add up to", faults)

    def reserved_once(self) -> Check:
        """Reserved at most once, and released exactly if the order was compensated."""
        lines = Counter((line.order_id, line.product_id) for line in self.lines)
        reserved, released = (
            Counter((move.order_id, move.product_id) for move in self.moves if move.kind == kind)
            for kind in (StockMove.Kind.RESERVED, StockMove.Kind.RELEASED)
        )
        faults = []
        for key, times in lines.items():
            status = self.ended.get(key[0])
            fair = {COMPLETED: [(times, 0)], COMPENSATED: [(0, 0), (times, times)]}.get(str(status), [])
            if (reserved[key], released[key]) not in fair:
                faults.append(f"{key[0]} ({status}): reserved {reserved[key]} x, released {released[key]} x")
        return Check("no line of an order was reserved or released twice", faults)

    def voided(self) -> Check:
        compensated = self.with_status(COMPENSATED)
        faults = [
            f"{payment.order_id}: payment {payment.pk} is {payment.status}"
            for payment in self.payments
            if payment.order_id in compensated
            and payment.status not in (Payment.Status.VOIDED, Payment.Status.DECLINED)
        ]
        number = sum(p.status == Payment.Status.VOIDED for p in self.payments)
        return Check(f"the payment of every compensated order is voided ({number}) or was declined", faults)

    def charged_once(self) -> Check:
        charges = Counter(p.order_id for p in self.payments if p.status != Payment.Status.DECLINED)
        faults = [f"{pk}: {times} charges" for pk, times in charges.items() if times > 1]
        faults += [f"{pk}: completed, never charged" for pk in self.with_status(COMPLETED) - set(charges)]
        again = sum(payment.requests - 1 for payment in self.payments)
        told = sum(max(payment.announced - 1, 0) for payment in self.payments)
        return Check(
            f"nothing was charged twice ({again} charges asked for again, {told} webhooks repeated)", faults
        )

    def money_balances(self) -> Check:
        completed = self.with_status(COMPLETED)
        due = _sum(
            (line.order_id, line.quantity * line.price_cents)
            for line in self.lines
            if line.order_id in completed
        )
        paid = _sum(
            (p.order_id, p.amount_cents) for p in self.payments if p.status == Payment.Status.SUCCEEDED
        )
        faults = [
            f"{pk}: {due[pk] / 100:.2f} due, {paid[pk] / 100:.2f} paid"
            for pk in due | paid
            if due[pk] != paid[pk]
        ]
        return Check(
            f"money taken = value of the completed orders ({sum(paid.values()) / 100:,.2f} EUR)", faults
        )

    def one_parcel_each(self) -> Check:
        booked = Counter(
            Shipment.objects.filter(order__branch=self.branch)
            .exclude(tracking="")
            .values_list("order_id", flat=True)
        )
        asked = (
            Shipment.objects.filter(order__branch=self.branch).aggregate(total=Sum("requests"))["total"] or 0
        )
        return Check(
            f"each completed order has one parcel, no other has any ({asked} requests to carriers)",
            self._one_each(booked, "parcels"),
        )

    def one_label_each(self) -> Check:
        labels = list(Label.objects.filter(order__branch=self.branch))
        valid = Counter(label.order_id for label in labels if not label.torn_up)
        printed = Counter(label.order_id for label in labels)
        faults = self._one_each(valid, "labels") + [
            f"{pk}: {n} printed" for pk, n in printed.items() if n > 1
        ]
        torn = len(labels) - sum(valid.values())
        return Check(
            f"each completed order has one label, no label was printed twice ({torn} torn up)", faults
        )

    def mails(self) -> Check:
        """One mail when the order is packed, one more if it was then taken back."""
        sent = Counter(Message.objects.filter(order__branch=self.branch).values_list("order_id", flat=True))
        packed = set(Label.objects.filter(order__branch=self.branch).values_list("order_id", flat=True))
        faults = []
        for order in self.orders.values():
            mails = 1 if self.ended.get(order.pk) == COMPLETED else 2
            expected = mails if order.email and order.pk in packed else 0
            if sent[order.pk] != expected:
                faults.append(f"{order.pk}: {sent[order.pk]} mails, {expected} expected")
        return Check(f"each customer got the mails they should, each once ({sum(sent.values())})", faults)

    def _moved(self, kind: str) -> Counter[int]:
        return _sum((move.product_id, move.quantity) for move in self.moves if move.kind == kind)

    def _one_each(self, counts: Counter[str], what: str) -> list[str]:
        completed = self.with_status(COMPLETED)
        return [
            f"{pk} ({self.ended.get(pk)}): {counts[pk]} {what}"
            for pk in self.orders
            if counts[pk] != (1 if pk in completed else 0)
        ]


def _sum(pairs: Iterable[tuple[K, int]]) -> Counter[K]:
    total: Counter[K] = Counter()
    for key, number in pairs:
        total[key] += number
    return total
