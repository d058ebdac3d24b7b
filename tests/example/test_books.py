"""The audit notices: every way to go wrong is done here by hand, and the check for it must say so."""

from collections.abc import Callable

import pytest
from django.db.models import F

from example_project.shop import stock
from example_project.shop.books import audit
from example_project.shop.models import Label, Message, Order, Payment, Product, Shipment, StockMove

from .conftest import BRANCH, TakeOrder

pytestmark = pytest.mark.django_db


def fulfil(order: Order) -> None:
    stock.reserve(order)
    Payment.objects.create(
        key=f"pay-{order.pk}", order=order, amount_cents=order.total_cents, card="visa", status="succeeded"
    )
    Label.objects.create(order=order, text=order.address)
    Message.objects.create(key=f"mail-{order.pk}", order=order, to=order.email, subject="packed")
    Shipment.objects.create(key=f"ship-{order.pk}", order=order, tracking="PA1DE", requests=1)


def undo(order: Order) -> None:
    Message.objects.create(key=f"sorry-{order.pk}", order=order, to=order.email, subject="sorry")
    Shipment.objects.filter(order=order).update(tracking="")
    Label.objects.filter(order=order).update(torn_up=True)
    Payment.objects.filter(order=order).update(status="voided")
    stock.release(order)


@pytest.fixture
def trade(take_order: TakeOrder) -> dict[str, str]:
    """How four orders ended: two completed, one taken back at the last step, one without stock."""
    first, second, third = take_order(), take_order(), take_order(kind="undeliverable")
    fourth = take_order(("POT-COPPER-15", 1), kind="out-of-stock")
    for order in (first, second, third):
        fulfil(order)
    undo(third)
    return {
        first.pk: "completed",
        second.pk: "completed",
        third.pk: "compensated",
        fourth.pk: "compensated",
    }


def wrong(ended: dict[str, str]) -> set[str]:
    """The beginnings of the sentences that do not hold."""
    return {" ".join(check.text.split()[:3]) for check in audit(BRANCH, ended) if not check.holds}


def test_a_shop_in_order_balances(trade: dict[str, str]) -> None:
    checks = audit(BRANCH, trade)
    assert [check.faults for check in checks] == [[]] * len(checks)
    texts = [check.text for check in checks]
    assert "each of the 4 orders ended as its kind says" in texts
    # Two completed orders of three pieces each.
    received = sum(StockMove.objects.filter(kind="received").values_list("quantity", flat=True))
    assert f"stock sold + stock left = stock at start (6 + {received - 6} = {received})" in texts


def first_of(status: str, ended: dict[str, str]) -> str:
    return next(pk for pk in ended if ended[pk] == status)


def lose_goods(ended: dict[str, str]) -> None:
    Product.objects.filter(branch=BRANCH, sku="TEA-MINT-50").update(quantity=F("quantity") - 1)


def reserve_twice(ended: dict[str, str]) -> None:
    stock.reserve(Order.objects.get(pk=first_of("completed", ended)))


def never_release(ended: dict[str, str]) -> None:
    moves = StockMove.objects.filter(order=first_of("compensated", ended), kind="released")
    for move in moves:
        Product.objects.filter(pk=move.product_id).update(quantity=F("quantity") - move.quantity)
    moves.delete()


def charge_twice(ended: dict[str, str]) -> None:
    Payment.objects.create(
        key="again", order_id=first_of("completed", ended), amount_cents=3720, card="visa", status="pending"
    )


def charge_too_much(ended: dict[str, str]) -> None:
    Payment.objects.filter(order=first_of("completed", ended)).update(amount_cents=F("amount_cents") + 1)


def keep_the_money(ended: dict[str, str]) -> None:
    Payment.objects.filter(order=first_of("compensated", ended)).update(status="succeeded")


def leave_a_charge_open(ended: dict[str, str]) -> None:
    Payment.objects.filter(order=first_of("compensated", ended)).update(status="pending")


def print_twice(ended: dict[str, str]) -> None:
    Label.objects.create(order_id=first_of("completed", ended), text="")


def print_twice_and_tear_up_one(ended: dict[str, str]) -> None:
    Label.objects.create(order_id=first_of("completed", ended), text="", torn_up=True)


def leave_a_label(ended: dict[str, str]) -> None:
    Label.objects.filter(order=first_of("compensated", ended)).update(torn_up=False)


def ship_twice(ended: dict[str, str]) -> None:
    Shipment.objects.create(key="again", order_id=first_of("completed", ended), tracking="PA2DE")


def never_ship(ended: dict[str, str]) -> None:
    Shipment.objects.filter(order=first_of("completed", ended)).update(tracking="")


def ship_what_was_taken_back(ended: dict[str, str]) -> None:
    Shipment.objects.filter(order=first_of("compensated", ended)).update(tracking="PA3DE")


def mail_twice(ended: dict[str, str]) -> None:
    order = Order.objects.get(pk=first_of("completed", ended))
    Message.objects.create(key="again", order=order, to=order.email, subject="packed")


def never_apologise(ended: dict[str, str]) -> None:
    Message.objects.filter(subject="sorry").delete()


STOCK, SHELF, LINES = "stock sold +", "the shelf is", "no line of"
VOIDED, ONCE, MONEY = "the payment of", "nothing was charged", "money taken ="
COMPLETED_ORDERS, MAILS = "each completed order", "each customer got"


@pytest.mark.parametrize(
    ("mishap", "noticed"),
    [
        (lose_goods, {STOCK, SHELF}),
        (reserve_twice, {STOCK, LINES}),
        (never_release, {STOCK, LINES}),
        (charge_twice, {ONCE}),
        (charge_too_much, {MONEY}),
        (keep_the_money, {VOIDED, MONEY}),
        (leave_a_charge_open, {VOIDED}),
        (print_twice, {COMPLETED_ORDERS}),
        (print_twice_and_tear_up_one, {COMPLETED_ORDERS}),
        (leave_a_label, {COMPLETED_ORDERS}),
        (ship_twice, {COMPLETED_ORDERS}),
        (never_ship, {COMPLETED_ORDERS}),
        (ship_what_was_taken_back, {COMPLETED_ORDERS}),
        (mail_twice, {MAILS}),
        (never_apologise, {MAILS}),
    ],
)
def test_a_mishap_is_noticed(
    trade: dict[str, str], mishap: Callable[[dict[str, str]], None], noticed: set[str]
) -> None:
    mishap(trade)
    assert wrong(trade) == noticed


@pytest.mark.parametrize("status", ["failed", "cancelled", "running", "compensated"])
def test_an_order_that_ends_otherwise_than_its_kind_says_is_noticed(
    trade: dict[str, str], status: str
) -> None:
    trade[first_of("completed", trade)] = status
    assert "each of the" in wrong(trade)


def test_a_last_piece_that_was_not_sold_is_noticed(take_order: TakeOrder) -> None:
    buyers = [take_order(("ONE-TRAY-ASH", 1), kind="last-pieces") for _ in range(3)]
    fulfil(buyers[0])
    fulfil(buyers[1])
    ended = {order.pk: "completed" if order in buyers[:2] else "compensated" for order in buyers}
    assert wrong(ended) == set()
    undo(buyers[1])
    ended[buyers[1].pk] = "compensated"
    assert wrong(ended) == {"the last 2"}
