"""Random trouble for minutes: `python -m tests.soak [MINUTES]`, or `make soak MINUTES=5`.

Round after round, random runs on two workers that are killed, stopped and cut off, runs cancelled and retried
meanwhile; after each round all invariants are asked of the database. Prints a table, and exits with 1 as soon as
something does not hold: a run that is lost, an effect that is there twice, a handler that was called again though
its worker lived. Works in a database of its own, which is dropped at the end.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

PER_ROUND = 100
"""Runs in a round: enough to have many at once, few enough to be looked at all together."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=main.__doc__)
    parser.add_argument("minutes", nargs="?", type=float, default=5.0, help="how long (default: 5)")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the first round (default: another each time)"
    )
    options = parser.parse_args()
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.crash_app.settings"
    os.environ.setdefault("LOG_LEVEL", "ERROR")
    import django

    django.setup()
    seed = options.seed if options.seed is not None else int(time.time())
    return _soak(options.minutes * 60, seed)


def _soak(seconds: float, seed: int) -> int:
    from django.test.utils import setup_databases, teardown_databases

    from tests.support.crash import prepare, registered
    from tests.support.workers import Launcher

    made = setup_databases(verbosity=0, interactive=False)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            registered(),
            Launcher(Path(folder), prepare()) as launcher,
        ):
            return _rounds(launcher, seconds, seed)
    finally:
        teardown_databases(made, verbosity=0)


def _rounds(launcher: object, seconds: float, seed: int) -> int:
    from tests.support import invariants
    from tests.support.crash import clear
    from tests.support.storm import Storm, started_again
    from tests.support.workers import Launcher

    assert isinstance(launcher, Launcher)
    total: Counter[str] = Counter()
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        storm = Storm(launcher, seed)
        try:
            storm.blow(PER_ROUND)
            invariants.check(zombies=True, dead=storm.tally.dead)
            duplicates = started_again(storm.tally.dead)
            assert not duplicates, f"{duplicates} handlers were called again although their worker lived"
        except AssertionError as violation:
            print(
                f"\nround {total['rounds'] + 1} (--seed {seed}) broke a promise:\n{violation}",
                file=sys.stderr,
            )
            _table(total + storm.tally.counts, time.monotonic() - begun)
            return 1
        total += storm.tally.counts
        total["rounds"] += 1
        total["duplicates"] += duplicates
        elapsed = time.monotonic() - begun
        print(
            f"{elapsed:6.0f} s  round {total['rounds']} (--seed {seed}): {dict(storm.tally.counts)}",
            flush=True,
        )
        launcher.end_all()
        clear()
        seed += 1
    _table(total, time.monotonic() - begun)
    return 0


def _table(total: Counter[str], seconds: float) -> None:
    over = sum(total[status] for status in ("completed", "compensated", "failed", "cancelled"))
    rows = [
        ("seconds", f"{seconds:.0f}"),
        ("rounds", total["rounds"]),
        ("runs", total["runs"]),
        *((f"  {status}", total[status]) for status in ("completed", "compensated", "failed", "cancelled")),
        ("cancels, retries", f"{total['cancels']}, {total['retries']}"),
        ("kills", total["workers killed"]),
        ("stops (SIGSTOP)", total["workers stopped"]),
        ("connections cut", total["connections cut"]),
        ("handler starts", total["handler starts"]),
        ("  started again, their worker dead", total["started again"]),
        ("duplicates (their worker alive)", total["duplicates"]),
        ("losses (runs that never ended)", total["runs"] - over if over else 0),
    ]
    print()
    for name, value in rows:
        print(f"{name:36} {value:>10}")


if __name__ == "__main__":
    sys.exit(main())
