"""`manage.py shop_stream`: the shop is open. One example order after another, until it is stopped."""

from __future__ import annotations

import random
import secrets
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import InterfaceError, OperationalError, connection, transaction

from example_project.shop import gateway, webhooks
from example_project.shop.models import Product
from example_project.shop.orders import OrderRow, forget_old, open_branch, orders_file, place, restock
from workflow import RunHandle, workflows
from workflow.management.stopping import Stop, told_to_stop

BRANCH = "stream"
CORRELATION = "shop-stream"
PAYMENTS_EVERY = 0.5  # seconds
TRY_AGAIN_AFTER = 5.0  # seconds
TIDY_EVERY = 100  # orders
KEEP = timedelta(days=1)


class Command(BaseCommand):
    help = "Dispatches an example order every few seconds and confirms payments, until SIGINT or SIGTERM."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--every", type=float, default=2.0, help="seconds between two orders (2)")
        parser.add_argument(
            "--count", type=int, help="leave after so many orders, when their runs have ended"
        )
        parser.add_argument("--queue", default="default", help="the queue of the runs (default)")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["every"] <= 0:
            raise CommandError("--every must be positive")
        self.every: float = options["every"]
        self.left: int | None = options["count"]
        self.queue: str = options["queue"]
        self.open_runs: list[RunHandle] = []  # kept with --count only
        with told_to_stop() as stop:  # between two transactions
            self.trade(stop)

    def trade(self, stop: Stop) -> None:
        if not Product.objects.filter(branch=BRANCH).exists():
            open_branch(BRANCH)
        rows = shuffled_for_ever(orders_file().orders)
        next_order = time.monotonic()
        while not stop.is_set():
            try:
                if self.left != 0 and time.monotonic() >= next_order:
                    next_order = time.monotonic() + self.every
                    self.take_order(next(rows))
                gateway.confirm_payments(BRANCH)
                gateway.call_webhook(BRANCH, webhooks.receive)
                if self.over():
                    return
            except (OperationalError, InterfaceError) as error:
                # The database restarts, perhaps. What was not committed never happened, so we just go on.
                self.stderr.write(f"no database, trying again: {' '.join(str(error).split())}")
                connection.close()
                stop.wait(TRY_AGAIN_AFTER)
            until_order = next_order - time.monotonic() if self.left != 0 else PAYMENTS_EVERY
            stop.wait(min(PAYMENTS_EVERY, max(0.0, until_order)))

    def take_order(self, row: OrderRow) -> None:
        restock(BRANCH)
        # One transaction: the order and its run are there together, or neither is.
        with transaction.atomic():
            [order] = place(BRANCH, [row], prefix=secrets.token_hex(4).upper())
            run = workflows.dispatch(
                "order-fulfillment", {"order_id": order.pk}, correlation_id=CORRELATION, queue=self.queue
            )
        self.stdout.write(f"{order.pk}  {row.total:>8} EUR  {row.kind:<14} run {run.run_id}")
        self.stdout.flush()
        if self.left is not None:
            self.left -= 1
            self.open_runs.append(run)
        elif row.number % TIDY_EVERY == 0:
            forget_old(BRANCH, KEEP)

    def over(self) -> bool:
        self.open_runs = [run for run in self.open_runs if run.status().run.finished_at is None]
        return self.left == 0 and not self.open_runs


def shuffled_for_ever(rows: list[OrderRow]) -> Iterator[OrderRow]:
    while True:
        yield from random.sample(rows, len(rows))
