"""Random runs on real workers that are killed, stopped and cut off at random, runs cancelled and retried meanwhile."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.db import connection

from tests.crash_app import trees
from tests.support.crash import age_leases, dispatch, key_of, sessions, terminate
from tests.support.workers import Launcher, Worker
from workflow import states, workflows
from workflow.errors import RunConflict
from workflow.models import Job, Run
from workflow.registry import registry
from workflow.results import RunHandle

DEEDS = [
    ["fail", "ok"],
    ["fail", "fail", "ok"],
    ["fatal"],
    ["sleep:0.1"],
    ["sleep:0.1"],
    ["query"],
    ["kill", "ok"],
]
"""What some of the handlers are told to do; the last one takes its worker with it."""
UNDEEDS = [["fail", "ok"], ["fail"], ["sleep:0.05"], ["kill", "ok"]]
"""The same for compensations."""
SETTINGS = {"THREADS": 6, "CONCURRENCY": 12, "SHUTDOWN_GRACE": 1}


@dataclass
class Tally:
    """What happened."""

    counts: Counter[str] = field(default_factory=Counter)
    dead: set[int] = field(default_factory=set)
    """Workers that were killed, or stopped until they had lost their leases."""


class Storm:
    """`blow(runs)` starts so many runs and returns once all are over. Everything that goes wrong in it is meant."""

    def __init__(self, launcher: Launcher, seed: int, workers: int = 2) -> None:
        self.tally = Tally()
        self._launcher = launcher
        self._dice = random.Random(seed)
        self._wanted = workers
        self._workers: list[Worker] = []
        self._stopped: list[tuple[Worker, float]] = []
        self._silent: set[int] = set()
        """Pids of workers that are killed or stopped now: their leases run out at once."""
        self._handles: list[RunHandle] = []
        self._events: list[tuple[float, str, str]] = []

    def blow(self, runs: int, within: float = 240) -> None:
        """Raises AssertionError when some run has not ended `within` so many seconds."""
        deadline = time.monotonic() + within
        left = runs
        while left or self._live():
            assert time.monotonic() < deadline, "the storm does not end"
            for _ in range(min(left, self._dice.randint(0, 6))):
                self._start_run()
                left -= 1
            self._publish()
            self._keep_workers()
            self._mischief()()
            time.sleep(self._dice.uniform(0.0, 0.08))
            if not left and time.monotonic() > deadline - within / 2:
                break  # from here on they are left in peace
        self._calm_down(deadline)

    # --- runs -----------------------------------------------------------------------------------

    def _start_run(self) -> None:
        dice = self._dice
        tree = registry.get(f"random-{dice.randrange(trees.COUNT):02}").tree
        script: dict[str, Any] = {}
        for node in tree.nodes:
            if node.kind == "action" and dice.random() < 0.15:
                script[node.path] = dice.choice(DEEDS)
            if node.kind == "action" and dice.random() < 0.05:
                script[f"undo {node.path}"] = dice.choice(UNDEEDS)
        handle = dispatch(tree.nodes[0].definition.name, script, priority=dice.randint(0, 2))
        self._handles.append(handle)
        self.tally.counts["runs"] += 1
        now, key = time.monotonic(), key_of(handle)
        for node in tree.nodes:
            if node.kind == "stage" and not node.groups:
                self._events.append((now + dice.choice([0.0, 0.1, 1.0]), node.definition.wait_for.event, key))

    def _publish(self) -> None:
        now = time.monotonic()
        ready = [event for event in self._events if event[0] <= now]
        self._events = [event for event in self._events if event[0] > now]
        for _, kind, key in ready:
            workflows.publish(kind, {"key": key}, correlation=key)

    def _live(self) -> bool:
        ids = [handle.run_id for handle in self._handles]
        return Run.objects.filter(pk__in=ids, finished_at=None).exists()

    # --- workers --------------------------------------------------------------------------------

    def _keep_workers(self) -> None:
        for worker in list(self._workers):
            if worker.code is not None:
                self._workers.remove(worker)
                self._bury(worker)
        age_leases(*self._silent)
        while len(self._workers) < self._wanted:
            age = self._dice.choice([0, 60])
            self._workers.append(self._launcher.start(settings=SETTINGS, conn_max_age=age))

    def _bury(self, worker: Worker) -> None:
        # SIGTERM ends a process that has only just been forked and has not begun to work.
        assert worker.code in (0, -signal.SIGKILL, -signal.SIGTERM), f"{worker.code}: {worker.said()}"
        if worker.code == -signal.SIGKILL:
            self.tally.counts["workers killed"] += 1
            self.tally.dead.add(worker.pid)
            self._silent.add(worker.pid)

    # --- mischief -------------------------------------------------------------------------------

    def _mischief(self) -> Callable[[], None]:
        chosen: Callable[[], None] = self._dice.choices(
            [
                self._nothing,
                self._kill,
                self._stop,
                self._go_on,
                self._cut,
                self._cancel,
                self._retry,
                self._leave,
            ],
            [60, 4, 3, 6, 3, 4, 4, 2],
        )[0]
        return chosen

    def _nothing(self) -> None:
        pass

    def _kill(self) -> None:
        if self._workers:
            self._dice.choice(self._workers).kill()

    def _stop(self) -> None:
        """A worker that is stopped for longer than its leases last, and does not know."""
        if len(self._workers) > 1:
            worker = self._dice.choice(self._workers)
            self._workers.remove(worker)
            worker.send(signal.SIGSTOP)
            self._stopped.append((worker, time.monotonic()))
            self.tally.counts["workers stopped"] += 1
            self.tally.dead.add(worker.pid)
            self._silent.add(worker.pid)

    def _go_on(self) -> None:
        if self._stopped:
            worker, _ = self._stopped.pop(0)
            self._silent.discard(worker.pid)
            worker.send(signal.SIGCONT)
            self._workers.append(worker)

    def _leave(self) -> None:
        """A worker leaves in good order; what its handlers do not finish in a second is given back."""
        if self._workers:
            worker = self._dice.choice(self._workers)
            worker.send(signal.SIGTERM)
            self.tally.counts["workers told to leave"] += 1
            self.tally.dead.add(worker.pid)

    def _cut(self) -> None:
        found = sessions()
        self.tally.counts["connections cut"] += terminate(self._dice.sample(found, len(found) // 3))

    def _cancel(self) -> None:
        self._command("cancels", workflows.cancel)

    def _retry(self) -> None:
        failed = list(Run.objects.filter(status=states.FAILED).values_list("pk", flat=True))
        if failed:
            self._try("retries", lambda: workflows.retry(self._dice.choice(failed)))

    def _command(self, name: str, command: Callable[..., Any]) -> None:
        live = list(Run.objects.filter(status__in=states.RUN_FORWARD).values_list("pk", flat=True)[:20])
        if live:
            self._try(name, lambda: command(self._dice.choice(live)))

    def _try(self, name: str, command: Callable[[], Any]) -> None:
        try:
            command()
        except RunConflict:
            return  # somebody was first
        self.tally.counts[name] += 1

    # --- the end --------------------------------------------------------------------------------

    def _calm_down(self, deadline: float) -> None:
        while self._stopped:
            self._go_on()
        while self._live() or self._events or Job.objects.exists():
            assert time.monotonic() < deadline, "runs are left that do not end"
            self._publish()
            self._keep_workers()
            time.sleep(0.02)
        for worker in self._workers:
            assert worker.stop() in (0, -signal.SIGKILL, -signal.SIGTERM), worker.said()
        self._workers.clear()
        for status in states.RUN_TERMINAL:
            self.tally.counts[status] += Run.objects.filter(status=status).count()
        self.tally.counts["handler starts"] += _count(
            "SELECT count(*) FROM crash_call WHERE phase IN ('run', 'undo')"
        )
        self.tally.counts["started again"] += _count(AGAIN, (list(self.tally.dead),))
        self._handles.clear()


def _count(sql: str, parameters: tuple[Any, ...] | None = None) -> int:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        found: int = cursor.fetchone()[0]
        return found


AGAIN = """
SELECT count(*) FROM crash_call AS c
WHERE c.phase <> 'replay' AND (c.how = 'returned' OR c.how IS NULL)
  AND EXISTS (SELECT 1 FROM crash_call AS later
              WHERE later.run_id = c.run_id AND later.path = c.path AND later.phase = c.phase
                AND later.started_at > c.started_at AND NOT (later.attempt < c.attempt AND later.pid = ANY(%s)))
"""
"""Calls that returned, or never ended, and were followed by another of the same handler, step, or undoing of a step.

Not by the call of an earlier attempt: a worker that was stopped just before it called the handler does so when it
goes on, after its lease is lost and the next attempt was made elsewhere. Nothing can keep it from that, and what it
returns does not count. `%s`: such workers.
"""


def started_again(dead: set[int]) -> int:
    """The same, but only those whose worker neither died nor lost its leases. There must be none, but for runs that
    somebody has retried, and for attempts that failed after their handler had returned (its transaction was cut off).
    """
    return _count(
        AGAIN
        + """ AND c.pid <> ALL(%s)
              AND NOT EXISTS (SELECT 1 FROM workflow_runevent AS e
                              WHERE e.run_id = c.run_id AND e.name = 'resumed' AND e.data ? 'retry')
              AND NOT EXISTS (SELECT 1 FROM workflow_runevent AS e
                              WHERE e.run_id = c.run_id AND e.node = c.path AND e.name = 'action.retrying'
                                AND (e.data->>'attempt')::int = c.attempt
                                AND e.data->'error'->>'code' <> 'LEASE_HEARTBEAT_LOST')
        """,
        (list(dead), list(dead)),
    )
