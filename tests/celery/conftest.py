"""Real Celery workers with a Redis as their broker, on the workflows of `tests.crash_app`."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import redis

from tests.support.crash import launcher, workers
from tests.support.redis_server import Redis, redis_server
from tests.support.workers import Launcher, Worker, eventually

__all__ = ["launcher", "redis_server", "workers"]

TRANSPORT = "workflow.transports.celery"
QUIETLY = ("--without-gossip", "--without-mingle", "--without-heartbeat")
_numbers = count(1)


class Fleet:
    """Starts Celery workers, and plain ones beside them."""

    def __init__(self, workers: Launcher, broker: Redis) -> None:
        self.workers = workers
        self.broker = broker

    def celery(
        self,
        pool: str = "prefork",
        *arguments: str,
        concurrency: int = 2,
        failpoints: str = "",
        **settings: Any,
    ) -> Worker:
        """A Celery worker that has begun to work. `settings` are those of WORKFLOW."""
        name = f"w{next(_numbers)}@test"
        worker = self.workers.start(
            failpoints,
            settings={"TRANSPORT": TRANSPORT, **settings},
            celery=[self.broker.url, "-P", pool, "-c", str(concurrency), "-n", name, *QUIETLY, *arguments],
        )
        eventually(lambda: worker.code is not None or worker.lines(name, "ready."), what=worker.said)
        assert worker.code is None, worker.said()
        return worker

    def plain(self, **options: Any) -> Worker:
        """`workflow:worker` with the same transport."""
        return self.workers.start(settings={"TRANSPORT": TRANSPORT}, **options)

    @property
    def client(self) -> redis.Redis:
        return redis.Redis(port=self.broker.port)

    def waiting(self) -> int:
        """Messages that nobody has taken from the broker."""
        client = self.client
        try:
            return int(client.llen("celery"))
        finally:
            client.close()


@pytest.fixture
def fleet(workers: Launcher, redis_server: Redis) -> Fleet:
    made = Fleet(workers, redis_server)
    client = made.client
    client.flushall()
    client.close()
    return made
