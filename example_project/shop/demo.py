"""The demo: all orders of the file through real worker processes, one of which is killed on the way.

`Demo.run` plays the world around the shop (customers who confirm their payments, a power cut) and reports
to a `Screen`; whether the shop adds up afterwards is for `books` to say.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from workflow import RunConflict, workflows
from workflow.models import Job, Node, Run, Worker

from . import gateway, webhooks
from .children import Workers
from .orders import open_branch, orders_file, place

BRANCH = "demo"
QUEUE = "demo"  # a queue of its own, so that a worker of `make serve` does not help (or outlive a kill)
CORRELATION = "shop-demo"
ENDED = ("completed", "compensated", "failed", "cancelled")
LOOK_EVERY = 0.2  # seconds
KILL_AT = 0.1  # a worker is killed once this share of the runs has ended and it is charging somebody ...
KILL_ANYWAY_AT = 0.4  # ... or, whatever it is doing, at this share


class DemoFailed(Exception):
    """The demo could not be played to its end; the text says why."""


@dataclass
class Sight:
    """What there is to see at one moment."""

    seconds: float
    statuses: Counter[tuple[str, str]]  # (kind of order, status of its run): how many
    workers: dict[int, str]  # pid: what it is doing

    def number(self, *statuses: str) -> int:
        return sum(count for (_, status), count in self.statuses.items() if status in statuses)


class Screen(Protocol):
    def note(self, seconds: float, text: str) -> None:
        """Something happened."""

    def show(self, sight: Sight) -> None:
        """Called several times a second."""


@dataclass
class Demo:
    workers: Workers
    screen: Screen
    number_of_workers: int = 2
    limit: float = 120.0  # seconds
    kill: bool = True
    heed: Callable[[], None] = lambda: (
        None
    )  # called at each look: raises when the demo has been told to leave
    orders_by_run: dict[UUID, tuple[str, str]] = field(default_factory=dict)  # run: (order's id, its kind)
    statuses: dict[UUID, str] = field(default_factory=dict)
    orphans: set[UUID] = field(default_factory=set)  # runs that the killed worker had in its hands
    abandoned_by: int | None = None  # the killed worker, as long as jobs are still leased to it
    pids: dict[int, str] = field(default_factory=dict)
    started: float = 0.0

    def run(self, prefix: str) -> None:
        """Plays the demo. Returns when every run has ended; raises DemoFailed when that takes too long."""
        self.started = time.monotonic()
        self._clear_up()
        for _ in range(self.number_of_workers):
            self._start_worker()
        self._dispatch(prefix)
        while True:
            self.heed()
            self._world_moves()
            sight = self._look()
            self.screen.show(sight)
            ended = sight.number(*ENDED)
            if ended == len(self.orders_by_run):
                self._note("every order has ended")
                return
            self._note_takeover()
            if self.kill and ended >= KILL_AT * len(self.orders_by_run):
                self._kill_one(patient=ended < KILL_ANYWAY_AT * len(self.orders_by_run))
            self._check_patience(sight)
            time.sleep(LOOK_EVERY)

    def ended(self) -> dict[str, str]:
        """The status in which each order's run ended, by the order's id."""
        return {order: self.statuses[run] for run, (order, _) in self.orders_by_run.items()}

    def _clear_up(self) -> None:
        """A fresh shop; what an earlier demo left unfinished is cancelled."""
        for status in ("pending", "running", "waiting"):
            while leftover := workflows.list(correlation_id=CORRELATION, status=status).items:
                for run in leftover:
                    with suppress(RunConflict):  # it ended meanwhile
                        workflows.cancel(run.id, reason="a new demo begins")
        open_branch(BRANCH)

    def _dispatch(self, prefix: str) -> None:
        begin = time.monotonic()
        # One transaction: there is never an order without a run, nor a run without its order.
        with transaction.atomic():
            orders = place(BRANCH, orders_file().orders, prefix)
            placed = time.monotonic()
            handles = workflows.dispatch_many(
                "order-fulfillment",
                [{"order_id": order.pk} for order in orders],
                correlation_id=CORRELATION,
                queue=QUEUE,
            )
        for handle, order in zip(handles, orders, strict=True):
            self.orders_by_run[UUID(str(handle.run_id))] = (order.pk, order.kind)
        self._note(
            f"{len(orders)} orders placed ({placed - begin:.2f} s) and "
            f"dispatched ({time.monotonic() - placed:.2f} s) in one transaction"
        )

    def _world_moves(self) -> None:
        """Customers confirm their payments, and the payment provider calls the shop's webhook."""
        gateway.confirm_payments(BRANCH)
        gateway.call_webhook(BRANCH, webhooks.receive)

    def _look(self) -> Sight:
        self.statuses = dict(
            Run.objects.filter(correlation_id=CORRELATION, pk__in=self.orders_by_run).values_list(
                "pk", "status"
            )
        )
        counts = Counter((self.orders_by_run[run][1], status) for run, status in self.statuses.items())
        return Sight(self._seconds(), counts, dict(self.pids))

    def _start_worker(self, why: str = "") -> None:
        pid = self.workers.start()
        self.pids[pid] = "at work"
        self._note(f"worker {pid} started{why}")

    def _kill_one(self, *, patient: bool) -> None:
        victim = self.workers.running[0].pid
        # The nastiest moment: a charge was asked for, and nobody has written down the answer yet.
        charging = Node.objects.filter(
            path="order-fulfillment.pay.charge", status="running", run__in=jobs_of(victim).values("run")
        )
        if patient and not charging.exists():
            return
        self.workers.kill(victim)
        self.orphans = set(jobs_of(victim).exclude(run=None).values_list("run_id", flat=True))
        self.abandoned_by = victim
        self.pids[victim] = "killed"
        self.kill = False
        self._note(f"worker {victim} killed (SIGKILL) with {len(self.orphans)} runs in its hands")
        self._start_worker(" in its place")

    def _note_takeover(self) -> None:
        """The dead worker's leases run out after STALE_LEASE_THRESHOLD; then whoever is alive takes its jobs."""
        if self.abandoned_by and not jobs_of(self.abandoned_by).exists():
            self._note(f"all that worker {self.abandoned_by} had in its hands was taken over by the others")
            self.abandoned_by = None

    def _check_patience(self, sight: Sight) -> None:
        problem = ""
        for child in self.workers.lost():
            problem = f"worker {child.pid} ended by itself with exit status {child.returncode}"
        if self._seconds() > self.limit:
            live = ((n, kind, status) for (kind, status), n in sight.statuses.items() if status not in ENDED)
            still = ", ".join(f"{n} {kind} {status}" for n, kind, status in sorted(live, reverse=True))
            problem = f"not over after {self.limit:.0f} s (--limit); still open: {still}"
        if problem:
            raise DemoFailed(f"{problem}. The last lines of the workers' log:\n{self.workers.said()}")

    def _seconds(self) -> float:
        return time.monotonic() - self.started

    def _note(self, text: str) -> None:
        self.screen.note(self._seconds(), text)


def jobs_of(pid: int) -> QuerySet[Job]:
    """The jobs that this worker process holds a lease on."""
    return Job.objects.filter(worker_id__in=Worker.objects.filter(pid=pid).values("pk"))
