"""Procrastinate: a job queue. It has no chain, so each task defers the one after it as its last act."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.peers.engines.base import Engine
from bench.peers.marks import mark

QUEUE = "bench"
CONCURRENCY = 20
POOL = 10


class Driver(Engine):
    unfinished_query = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"

    def describe(self) -> str:
        return f"async worker, concurrency {CONCURRENCY}, {POOL} connections, listens; a task defers the next"

    def _app(self, connector: Any) -> Any:
        import procrastinate

        app = procrastinate.App(connector=connector)
        steps = self.steps

        @app.task(queue=QUEUE, name="step")
        async def step(timed: int, number: int) -> None:
            mark(timed, number, steps)
            if number < steps:
                await step.defer_async(timed=timed, number=number + 1)

        self._step = step
        return app

    def _plain_app(self) -> Any:
        import procrastinate

        return self._app(procrastinate.SyncPsycopgConnector(conninfo=self.dsn, min_size=1, max_size=2))

    def prepare(self) -> None:
        with self._plain_app().open() as app:
            app.schema_manager.apply_schema()

    def work(self) -> None:
        asyncio.run(self._awork())

    async def _awork(self) -> None:
        import procrastinate

        app = self._app(procrastinate.PsycopgConnector(conninfo=self.dsn, min_size=POOL, max_size=POOL))
        async with app.open_async():
            await app.run_worker_async(queues=[QUEUE], concurrency=CONCURRENCY)

    def connect(self) -> None:
        self._client = self._plain_app()
        self._client.open()

    def start(self, timed: int) -> None:
        self._step.defer(timed=timed, number=1)

    def close(self) -> None:
        if hasattr(self, "_client"):
            self._client.close()
