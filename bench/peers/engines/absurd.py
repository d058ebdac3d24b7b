"""Absurd: SQL functions in PostgreSQL, and its Python SDK. A worker is one connection."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg

from bench.peers.engines.base import Engine
from bench.peers.marks import mark

QUEUE = "bench"


class Driver(Engine):
    unfinished_query = (
        f"SELECT count(*) FROM absurd.t_{QUEUE} WHERE state IN ('pending', 'running', 'sleeping')"
    )

    def describe(self) -> str:
        kind = "async" if self._async else "plain"
        claims = f"claims {self._batch} at once, polls each {self._poll} s"
        return f"{kind} worker, concurrency {self._concurrency}, {claims}"

    @property
    def _async(self) -> bool:
        return "async" in self.options.extra

    @property
    def _concurrency(self) -> int:
        return int(self.options.extra.get("concurrency", "1"))

    @property
    def _batch(self) -> int:
        return int(self.options.extra.get("batch", "10"))

    @property
    def _poll(self) -> float:
        return float(self.options.extra.get("poll", "0.02"))  # its default is 0.25

    def prepare(self) -> None:
        schema = Path(sys.executable).with_name("absurdctl")
        subprocess.run([schema, "init", "-d", self.dsn], check=True, capture_output=True)
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("SELECT absurd.create_queue(%s)", (QUEUE,))

    def work(self) -> None:
        if self._async:
            asyncio.run(self._awork())
            return
        from absurd_sdk import Absurd

        app = Absurd(self.dsn, queue_name=QUEUE)
        steps = self.steps

        @app.register_task(name="flow")
        def flow(params: dict[str, Any], ctx: Any) -> None:
            for number in range(1, steps + 1):
                ctx.step(f"step-{number}", lambda n=number: mark(params["timed"], n, steps))

        app.start_worker(concurrency=self._concurrency, batch_size=self._batch, poll_interval=self._poll)

    async def _awork(self) -> None:
        from absurd_sdk import AsyncAbsurd

        app = AsyncAbsurd(self.dsn, queue_name=QUEUE)
        steps = self.steps

        @app.register_task(name="flow")
        async def flow(params: dict[str, Any], ctx: Any) -> None:
            for number in range(1, steps + 1):

                async def step(n: int = number) -> None:
                    mark(params["timed"], n, steps)

                await ctx.step(f"step-{number}", step)

        await app.start_worker(
            concurrency=self._concurrency, batch_size=self._batch, poll_interval=self._poll
        )

    def connect(self) -> None:
        from absurd_sdk import Absurd

        self._client = Absurd(self.dsn, queue_name=QUEUE)

    def start(self, timed: int) -> None:
        self._client.spawn("flow", {"timed": timed}, queue=QUEUE)
