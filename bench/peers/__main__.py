"""`python -m bench.peers`: the same five empty steps on other engines and on ours, A B C, A B C, on one PostgreSQL.

Installs each peer into an environment of its own, starts a PostgreSQL of its own, ends and removes it afterwards.
Prints a table and writes docs/performance/results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from bench import machine, results
from bench.cluster import Cluster, cluster
from bench.peers import environments, table

ROOT = Path(__file__).resolve().parents[2]
DATABASE = "bench"
LIMIT = 240.0
"""Seconds that one engine gets in one round."""


@dataclass(frozen=True, slots=True)
class Contender:
    """An engine in one setting."""

    label: str
    engine: str
    workers: int = 1
    extra: dict[str, str] = field(default_factory=dict)
    quick: bool = True
    """Whether it takes part in a quick run."""


CONTENDERS = (
    Contender("rawpg", "rawpg"),
    Contender("rawpg, woken", "rawpg", extra={"woken": "1"}),
    Contender("ours, plain", "ours"),
    Contender("Absurd", "absurd"),
    Contender("ours, async", "ours", extra={"async": "1"}),
    Contender("Celery + Redis", "celery"),
    Contender("DBOS queue", "dbos"),
    Contender("ours, plain, 2 processes", "ours", workers=2, quick=False),
    Contender("Procrastinate", "procrastinate"),
    Contender("DBOS in process", "dbos", extra={"in-process": "1"}, quick=False),
    Contender("ours, async, 2 processes", "ours", workers=2, extra={"async": "1"}, quick=False),
    Contender("rawpg, 2 processes", "rawpg", workers=2, quick=False),
    Contender("Absurd, 2 processes", "absurd", workers=2, quick=False),
)


def main() -> None:
    asked = _arguments()
    chosen = [
        c for c in CONTENDERS if (not asked.only or c.engine in asked.only) and (c.quick or not asked.quick)
    ]
    if not shutil.which("redis-server") and any(c.engine == "celery" for c in chosen):
        print("no redis-server here: Celery is left out")
        chosen = [c for c in chosen if c.engine != "celery"]
    pythons = {engine: environments.python_of(engine) for engine in dict.fromkeys(c.engine for c in chosen)}
    found: dict[str, list[dict[str, Any]]] = {c.label: [] for c in chosen}
    began = time.monotonic()
    with cluster() as server:
        facts = machine.facts(server.dsn())
        floors: list[float] = []
        for number in range(1, asked.rounds + 1):
            floors.append(_floor(server))
            for contender in chosen:
                measured = _measure(contender, pythons[contender.engine], server, asked)
                if measured is not None:
                    found[contender.label].append(measured)
                    print(
                        f"{number}/{asked.rounds}  {contender.label:26s} {table.one_line(measured)}",
                        flush=True,
                    )
    summary = table.summarise(found, floors)
    print(f"\n{table.text(summary)}\n\n{time.monotonic() - began:.0f} s in all")
    if not asked.no_write:
        results.write("peers", summary, facts)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each engine is measured (default 3)")
    parser.add_argument(
        "--workflows",
        type=int,
        default=250,
        help="of the slow engines in each phase; fast ones get more (default 250)",
    )
    parser.add_argument(
        "--latencies", type=int, default=30, help="workflows timed one at a time (default 30)"
    )
    parser.add_argument("--quick", action="store_true", help="one process each, each engine in one setting")
    engines = list(dict.fromkeys(contender.engine for contender in CONTENDERS))
    parser.add_argument(
        "--only",
        action="append",
        choices=engines,
        metavar="ENGINE",
        help=f"of {', '.join(engines)}; repeatable",
    )
    parser.add_argument(
        "--no-write", action="store_true", help="leave docs/performance/results.json as it is"
    )
    return parser.parse_args()


def _measure(
    contender: Contender, python: Path, server: Cluster, asked: argparse.Namespace
) -> dict[str, Any] | None:
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        admin.execute(f"CREATE DATABASE {DATABASE}")
        admin.execute("CHECKPOINT")
    command = [
        str(python),
        "-m",
        "bench.peers.drive",
        contender.engine,
        f"--dsn={server.dsn(DATABASE)}",
        f"--postmaster={server.postmaster}",
        f"--workers={contender.workers}",
        f"--workflows={asked.workflows}",
        f"--latencies={asked.latencies}",
        *(f"--set={name}={value}" for name, value in contender.extra.items()),
    ]
    # A group of its own: whatever it has started can be ended, should it not end by itself.
    child = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, said = child.communicate(timeout=LIMIT)
    except BaseException as error:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        print(f"{contender.label}: not over after {LIMIT:g} s, left out of this round", file=sys.stderr)
        return None
    if child.returncode:
        print(f"{contender.label} failed, left out of this round:\n{said[-2000:]}", file=sys.stderr)
        return None
    measured: dict[str, Any] = json.loads(out.splitlines()[-1])
    return measured


def _floor(server: Cluster, seconds: float = 1.0) -> float:
    """Commits a second of single-row updates on one connection: what this minute's disk gives."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS floor (id int PRIMARY KEY, n int)")
        connection.execute("INSERT INTO floor VALUES (1, 0) ON CONFLICT DO NOTHING")
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            connection.execute("UPDATE floor SET n = n + 1 WHERE id = 1", prepare=True)
            count += 1
    return count / seconds


if __name__ == "__main__":
    main()
