"""The shelf: never oversold, never half reserved, and given back once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import connection

from example_project.shop import stock
from example_project.shop.models import Order, StockMove

from .conftest import BRANCH, TakeOrder


def test_reserving_takes_every_line_off_the_shelf_and_notes_it(
    take_order: TakeOrder, on_shelf: Callable[[str], int]
) -> None:
    mint, mugs = on_shelf("TEA-MINT-50"), on_shelf("CUP-STONE-BL")
    order = take_order(("TEA-MINT-50", 3), ("CUP-STONE-BL", 2))
    stock.reserve(order)
    assert (on_shelf("TEA-MINT-50"), on_shelf("CUP-STONE-BL")) == (mint - 3, mugs - 2)
    moves = order.stock_moves.order_by("product_id").values_list("product__sku", "kind", "quantity")
    assert list(moves) == [("TEA-MINT-50", "reserved", -3), ("CUP-STONE-BL", "reserved", -2)]


def test_an_order_that_one_line_of_cannot_be_served_takes_nothing(
    take_order: TakeOrder, on_shelf: Callable[[str], int]
) -> None:
    mint = on_shelf("TEA-MINT-50")
    order = take_order(("TEA-MINT-50", 3), ("POT-COPPER-15", 1))
    with pytest.raises(stock.OutOfStock, match="Copper kettle"):
        stock.reserve(order)
    assert on_shelf("TEA-MINT-50") == mint
    assert not order.stock_moves.exists()


def test_releasing_twice_gives_back_once(take_order: TakeOrder, on_shelf: Callable[[str], int]) -> None:
    mint = on_shelf("TEA-MINT-50")
    order = take_order(("TEA-MINT-50", 3))
    stock.reserve(order)
    stock.release(order)
    stock.release(order)
    assert on_shelf("TEA-MINT-50") == mint
    assert order.stock_moves.filter(kind=StockMove.Kind.RELEASED).count() == 1


def test_releasing_an_order_that_reserved_nothing_changes_nothing(
    take_order: TakeOrder, on_shelf: Callable[[str], int]
) -> None:
    mint = on_shelf("TEA-MINT-50")
    order = take_order(("TEA-MINT-50", 3))
    stock.release(order)
    assert on_shelf("TEA-MINT-50") == mint
    assert not order.stock_moves.exists()


def at_once(work: Callable[[Order], None], orders: list[Order]) -> list[str]:
    """Does `work` for all orders, each in a thread with a connection of its own. What each raised, or ''."""
    barrier = Barrier(len(orders))

    def run(order: Order) -> str:
        try:
            connection.ensure_connection()
            barrier.wait(10)
            work(order)
        except Exception as error:
            return type(error).__name__
        finally:
            connection.close()
        return ""

    with ThreadPoolExecutor(len(orders)) as pool:
        return list(pool.map(run, orders))


@pytest.mark.django_db(transaction=True)
def test_many_buyers_at_once_get_the_last_pieces_and_not_one_more(
    take_order: TakeOrder, on_shelf: Callable[[str], int]
) -> None:
    pieces = on_shelf("ONE-HARBOUR")
    orders = [take_order(("ONE-HARBOUR", 1), ("TEA-MINT-50", 1)) for _ in range(12)]
    results = at_once(stock.reserve, orders)
    assert sorted(results) == [""] * pieces + ["OutOfStock"] * (12 - pieces)
    assert on_shelf("ONE-HARBOUR") == 0
    sold = StockMove.objects.filter(product__branch=BRANCH, product__sku="TEA-MINT-50", kind="reserved")
    assert sold.count() == pieces


@pytest.mark.django_db(transaction=True)
def test_orders_that_name_the_same_goods_in_another_order_do_not_block_each_other(
    take_order: TakeOrder, on_shelf: Callable[[str], int]
) -> None:
    lines = [("TEA-MINT-50", 1), ("SWT-MARMAL", 1), ("KIT-WHISK", 1)]
    orders = [take_order(*(lines if number % 2 else lines[::-1])) for number in range(10)]
    whisks = on_shelf("KIT-WHISK")
    assert at_once(stock.reserve, orders) == [""] * 10
    assert on_shelf("KIT-WHISK") == whisks - 10


@pytest.mark.django_db(transaction=True)
def test_two_releases_of_one_order_at_once_give_back_once(
    take_order: TakeOrder, on_shelf: Callable[[str], int]
) -> None:
    mint = on_shelf("TEA-MINT-50")
    order = take_order(("TEA-MINT-50", 2))
    stock.reserve(order)
    assert at_once(stock.release, [order] * 6) == [""] * 6
    assert on_shelf("TEA-MINT-50") == mint
