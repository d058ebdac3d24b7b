"""The orders file is as varied as the demo needs it, and each order is of the kind that it says it is."""

from collections import Counter
from decimal import Decimal

import pytest

from example_project.shop import carrier, gateway
from example_project.shop.orders import KINDS, OrderRow, orders_file

CARD_LIMIT = Decimal(1500)
FILE = orders_file()
PRICES = {product.sku: product.price for product in FILE.products}
STOCK = {product.sku: product.stock for product in FILE.products}


def orders_of(*kinds: str) -> list[OrderRow]:
    return [order for order in FILE.orders if order.kind in kinds]


def demand(orders: list[OrderRow]) -> Counter[str]:
    total: Counter[str] = Counter()
    for order in orders:
        for sku, quantity in order.lines:
            total[sku] += quantity
    return total


SCARCE = {sku for sku, wanted in demand(orders_of("last-pieces")).items() if wanted > STOCK[sku]}


def test_there_are_at_least_200_orders_and_several_of_every_kind() -> None:
    kinds = Counter(order.kind for order in FILE.orders)
    assert kinds.total() >= 200
    assert set(kinds) == set(KINDS)
    assert min(kinds.values()) >= 5


def test_most_orders_have_several_lines() -> None:
    sizes = Counter(len(order.lines) for order in FILE.orders)
    assert sizes.total() - sizes[1] > 0.75 * sizes.total()
    assert max(sizes) >= 5


def test_order_numbers_are_unique_and_ascend() -> None:
    numbers = [order.number for order in FILE.orders]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("order", FILE.orders, ids=lambda order: str(order.number))
def test_an_order_adds_up(order: OrderRow) -> None:
    assert order.lines
    assert all(quantity > 0 for _, quantity in order.lines)
    assert len({sku for sku, _ in order.lines}) == len(order.lines)
    assert sum(PRICES[sku] * quantity for sku, quantity in order.lines) == order.total
    assert order.customer
    assert order.address
    assert len(order.country) == 2


def test_the_shelf_holds_enough_for_every_order_that_is_not_meant_to_find_it_empty() -> None:
    wanted = demand([order for order in FILE.orders if order.kind != "out-of-stock"])
    assert {sku for sku in wanted if wanted[sku] > STOCK[sku]} == SCARCE


def test_an_out_of_stock_order_asks_for_more_than_there_ever_is() -> None:
    for order in orders_of("out-of-stock"):
        assert any(quantity > STOCK[sku] for sku, quantity in order.lines), order.number
    assert {sku for sku, stock in STOCK.items() if stock == 0}, "some products are sold out for good"


def test_a_last_pieces_order_asks_for_one_scarce_piece_and_no_other_order_does() -> None:
    assert SCARCE
    for order in FILE.orders:
        scarce = [quantity for sku, quantity in order.lines if sku in SCARCE]
        assert scarce == ([1] if order.kind == "last-pieces" else []), order.number


def test_the_card_tells_which_payments_are_declined_or_never_come() -> None:
    for order in FILE.orders:
        assert (order.card in gateway.REFUSED) == (order.kind == "declined"), order.number
        assert (order.card == gateway.NEVER_CONFIRMED) == (order.kind == "never-pays"), order.number


def test_the_carrier_and_the_address_tell_how_shipping_goes() -> None:
    for order in FILE.orders:
        assert (order.carrier in carrier.FAILS_FIRST) == (order.kind == "flaky-carrier"), order.number
        assert order.address.startswith("PO Box") == (order.kind == "undeliverable"), order.number


def test_only_over_limit_orders_are_too_dear_for_a_card() -> None:
    for order in FILE.orders:
        if order.kind != "out-of-stock":  # never gets as far as its card
            assert (order.total > CARD_LIMIT) == (order.kind == "over-limit"), order.number


def test_some_customers_left_no_mail_address() -> None:
    without = [order for order in orders_of("plain") if not order.email]
    assert 0 < len(without) < len(orders_of("plain")) / 2
