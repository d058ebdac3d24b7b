"""A branch of the shop to try things in, and processes of `manage.py` on the test's database."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from django.conf import settings

from example_project.shop.models import Order, Product
from example_project.shop.orders import OrderRow, open_branch, orders_file, place
from tests.support.workers import database_url

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


@pytest.fixture
def manage(transactional_db: None) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`manage("shop_demo", "--limit", "5")`: a process of `manage.py` on the test's database."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments],
            env={**os.environ, "DATABASE_URL": database_url(), "PYTHONUNBUFFERED": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(child)
        return child

    yield run
    for child in started:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if child.stdout:
            child.stdout.close()
