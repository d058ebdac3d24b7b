"""django-saga, through its public names: one stage of so many inline actions, `workflow:worker` with its defaults."""

from __future__ import annotations

import subprocess
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg

from bench.peers.engines.base import Engine
from bench.peers.marks import mark


class Driver(Engine):
    scale = 6
    unfinished_query = (
        "SELECT count(*) FROM workflow_run WHERE status IN ('pending', 'running', 'waiting', 'compensating')"
    )

    def describe(self) -> str:
        return f"{'async' if self._async else 'plain'} handlers, defaults (100 units, 16 threads)"

    @property
    def _async(self) -> bool:
        return "async" in self.options.extra

    def _configure(self) -> None:
        import django
        from django.conf import settings

        url = urlsplit(self.dsn)
        settings.configure(
            SECRET_KEY="benchmark",
            USE_TZ=True,
            DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
            INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "pgtrigger", "workflow"],
            DATABASES={
                "default": {
                    "ENGINE": "django.db.backends.postgresql",
                    "NAME": url.path[1:],
                    "USER": unquote(url.username or ""),
                    "PASSWORD": unquote(url.password or ""),
                    "HOST": url.hostname or "",
                    "PORT": str(url.port or ""),
                    "CONN_MAX_AGE": None,
                }
            },
        )
        django.setup()

    def _define(self) -> Any:
        from workflow import Action, Stage, Workflow, workflows

        steps = self.steps

        def action(number: int) -> Action:
            def plain(state: dict[str, Any]) -> None:
                mark(state["timed"], number, steps)

            async def coroutine(state: dict[str, Any]) -> None:
                mark(state["timed"], number, steps)

            return Action(f"step-{number}", coroutine if self._async else plain)

        actions = [action(number) for number in range(1, steps + 1)]
        workflows.register(Workflow("flow", stages=[Stage("all", actions=actions)]))
        return workflows

    def prepare(self) -> None:
        subprocess.run([*self.worker_command(0), "--set=migrate=1"], check=True)

    def work(self) -> None:
        self._configure()
        from django.core.management import call_command

        if "migrate" in self.options.extra:
            call_command("migrate", verbosity=0)
            return
        self._define()
        call_command("workflow:worker")

    def connect(self) -> None:
        self._configure()
        self._workflows = self._define()
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            from bench.peers.drive import wait_until

            wait_until(lambda: self._registered(connection) >= self.options.workers, 60)

    @staticmethod
    def _registered(connection: psycopg.Connection[Any]) -> int:
        row = connection.execute("SELECT count(*) FROM workflow_worker").fetchone()
        assert row is not None
        return int(row[0])

    def start(self, timed: int) -> None:
        self._workflows.dispatch("flow", {"timed": timed})
