"""A branch of the shop to try things in."""

from collections.abc import Callable
from itertools import count

import pytest

from example_project.shop.models import Order, Product
from example_project.shop.orders import OrderRow, open_branch, orders_file, place

BRANCH = "test"

TakeOrder = Callable[..., Order]


@pytest.fixture
def branch(db: None) -> str:
    open_branch(BRANCH)
    return BRANCH


@pytest.fixture
def take_order(branch: str) -> TakeOrder:
    """`take_order(("TEA-MINT-50", 2), card="visa")`: a placed order, plain unless told otherwise."""
    numbers = count(1)
    template = orders_file().orders[0]

    def take(*lines: tuple[str, int], **changes: object) -> Order:
        row = template.model_copy(
            update={
                "kind": "plain",
                "card": "visa",
                "carrier": "parcelway",
                "number": next(numbers),
                "lines": list(lines) or [("TEA-MINT-50", 1), ("CUP-STONE-BL", 2)],
                **changes,
            }
        )
        [order] = place(BRANCH, [OrderRow.model_validate(row.model_dump())], prefix="T")
        return order

    return take


@pytest.fixture
def on_shelf(branch: str) -> Callable[[str], int]:
    return lambda sku: Product.objects.get(branch=BRANCH, sku=sku).quantity
