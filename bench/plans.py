"""`python -m bench.plans`: EXPLAIN (ANALYZE, BUFFERS) of each statement that a worker sends, in tables with a past.

Adds `--preload` finished runs (default 1,000,000: some minutes, some gigabytes) and `--waiting` ones that wait for an
event, and as many that sleep (default 50,000), lets a worker process drain a hundred new ones of three shapes and some
that come by everything else, explains each transaction just before it is run, on a connection with the worker's own
settings, and undoes that. Prints a line for each statement and writes docs/performance/plans.md.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, LiteralString, cast

import psycopg

from bench import results, server

TIMES = 40
"""How often a statement is explained at most; the plan that had most to do is kept."""
RUNS = 99
SHAPES = ("five-sync", "five-queued-stages", "compensate-four")
EVENTFUL = "each-kind"
"""Another shape, with all that a run can come by; it takes several bursts, and two events a run."""
BURSTS = 20


@dataclass(slots=True)
class Plan:
    """The plan of one execution."""

    lines: list[str]

    @property
    def milliseconds(self) -> float:
        return float(self.lines[-1].split()[-2])

    @property
    def buffers(self) -> str:
        """Of the statement as a whole: the first such line is the topmost node's."""
        return next((line.strip() for line in self.lines if "Buffers:" in line), "")

    @property
    def reads_whole(self) -> list[str]:
        return sorted(
            {line.split(" on ")[1].split()[0] for line in self.lines if "Seq Scan on workflow_" in line}
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.plans", description=__doc__)
    parser.add_argument("--preload", type=int, default=1_000_000, metavar="N", help="finished runs")
    parser.add_argument(
        "--waiting", type=int, default=50_000, metavar="N", help="as many waiting, as many sleeping"
    )
    asked = parser.parse_args()
    with server.scratch():
        found = _explained(asked.preload, asked.waiting)
    names = _names()
    head = (
        "# Plans\n\nWritten by `python -m bench.plans`: each statement of a worker that drains a backlog, beside "
        f"{asked.preload:,} finished runs, {asked.waiting:,} that wait and {asked.waiting:,} that sleep.\n"
        "The plan shown is the one that took longest.\n"
    )
    pages = [head]
    for sql, plan in sorted(found.items(), key=lambda item: names.get(item[0], "")):
        name = names.get(sql, sql.split("\n")[0])
        whole = ", ".join(plan.reads_whole)
        print(
            f"{name:28s} {plan.milliseconds:8.2f} ms  {plan.buffers}  {'READS WHOLE ' + whole if whole else ''}"
        )
        pages.append(f"## {name}\n\n```\n" + "\n".join(plan.lines) + "\n```\n")
    (results.FILE.parent / "plans.md").write_text("\n".join(pages))


def _explained(preload: int, waiting: int) -> dict[str, Plan]:
    from django.db import connection

    from bench import history
    from workflow import workflows
    from workflow.models import Run
    from workflow.store import ports
    from workflow.worker import process
    from workflow.worker.options import Options

    for add, count in ((history.finished, preload), (history.parked, waiting), (history.asleep, waiting)):
        if count:
            add(count)
    if preload or waiting:
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
    for shape in SHAPES:
        workflows.dispatch_many(shape, [{}] * (RUNS // len(SHAPES)))
    orders = [f"order-{number}" for number in range(RUNS // len(SHAPES))]
    workflows.dispatch_many(EVENTFUL, [{"order": order, "seconds": 0.5} for order in orders])
    parameters = ports.connection_parameters()

    class Explaining(ports.AsyncPort):
        """The real port; each transaction is explained before it is run."""

        plans: ClassVar[dict[str, Plan]] = {}
        counts: ClassVar[dict[str, int]] = {}

        async def run(self, statements: Sequence[Any]) -> list[Any]:
            if any(self.counts.get(sql, 0) < TIMES for sql, _ in statements):
                async with await psycopg.AsyncConnection.connect(**parameters) as other:
                    await other.execute(cast(LiteralString, ports.BY_INDEX))
                    for number, (sql, values) in enumerate(statements):
                        self._keep(sql, await _explain(other, number, sql, values))
                    await other.rollback()
            return await super().run(statements)

        def _keep(self, sql: str, plan: Plan) -> None:
            self.counts[sql] = self.counts.get(sql, 0) + 1
            if sql not in self.plans or plan.milliseconds > self.plans[sql].milliseconds:
                self.plans[sql] = plan

    process.AsyncPort = Explaining  # type: ignore[misc]

    async def work() -> None:
        await process.WorkerProcess(parameters, Options(concurrency=RUNS, burst=True)).run()

    for burst in range(BURSTS):
        asyncio.run(work())
        if burst == 1:  # some are waited for by then
            for order in 2 * orders:
                workflows.publish("bench.own", correlation=order)
        if not Run.objects.filter(workflow=EVENTFUL, finished_at=None).exists():
            return Explaining.plans
    raise RuntimeError(f"runs of {EVENTFUL} are not over after {BURSTS} bursts")


async def _explain(
    connection: psycopg.AsyncConnection[Any], number: int, sql: str, values: Sequence[object]
) -> Plan:
    """As the worker runs it: prepared, with a plan for any parameters."""
    from workflow.store.pipeline import _native

    statement = f"plan_{number}"
    await connection.execute(
        cast(LiteralString, f"PREPARE {statement} AS {_native(sql).decode()}"), prepare=False
    )
    given = f"({', '.join(_literal(value) for value in values)})" if values else ""
    cursor = await connection.execute(
        cast(LiteralString, f"EXPLAIN (ANALYZE, BUFFERS) EXECUTE {statement}{given}"), prepare=False
    )
    return Plan([row[0] for row in await cursor.fetchall()])


def _literal(value: object) -> str:
    return "NULL" if value is None else "'" + str(value).replace("'", "''") + "'"


def _names() -> dict[str, str]:
    """What each statement is called: `settle.UPDATE_RUNS`."""
    from workflow import sql

    found = {}
    for module in pkgutil.iter_modules(sql.__path__):
        for name, value in vars(importlib.import_module(f"workflow.sql.{module.name}")).items():
            if name.isupper() and isinstance(value, str) and not name.startswith("_"):
                found[value] = f"{module.name}.{name}"
    return found


if __name__ == "__main__":
    main()
