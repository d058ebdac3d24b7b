"""A few hundred random runs in all sorts of trouble. `CRASH_RUNS` says how many, `CRASH_SEED` which."""

from __future__ import annotations

import os

import pytest
from django.db import connection

from tests.support import invariants
from tests.support.storm import Storm, started_again
from tests.support.workers import Launcher

RUNS = int(os.environ.get("CRASH_RUNS", "80"))
SEED = int(os.environ.get("CRASH_SEED", "1"))
ROUND = 80

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]


def deadlocks() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        found: int = cursor.fetchone()[0]
        return found


@pytest.mark.parametrize("number", range((RUNS + ROUND - 1) // ROUND))
def test_random_runs_survive_random_trouble(workers: Launcher, number: int) -> None:
    before = deadlocks()
    storm = Storm(workers, SEED + number)
    storm.blow(ROUND)
    print(dict(storm.tally.counts))
    invariants.check(zombies=True, dead=storm.tally.dead)
    assert started_again(storm.tally.dead) == 0
    assert deadlocks() == before  # all of them have left, and reported what they met
