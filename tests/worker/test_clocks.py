"""The database's clock decides: a worker whose own clock is wrong, or whose time zone is another, changes nothing."""

from __future__ import annotations

import itertools
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import override_settings

from tests.support import invariants
from tests.support.crash import calls, dispatch, finished, key_of, node, status
from tests.support.workers import Launcher, eventually
from workflow import Action, Retry, Stage, WaitFor, Workflow, states, workflows
from workflow.models import Job, Node, Run
from workflow.registry import registry
from workflow.testing import advance, drain

ZONES = ("Asia/Kolkata", "America/St_Johns", "UTC")


def seconds_between(first: str, second: str) -> float:
    """From one SQL expression over crash_call to another."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT extract(epoch FROM ({second}) - ({first}))::float8 FROM crash_call")
        return cursor.fetchone()[0]


@pytest.mark.crash
def test_workers_whose_clocks_are_an_hour_off_take_no_lease_and_miss_no_time(workers: Launcher) -> None:
    short = {"STALE_LEASE_THRESHOLD": 2, "HEARTBEAT_INTERVAL": 0.2, "SWEEP_INTERVAL": 0.1}
    for skew in (3600, -3600):
        workers.start(settings=short, skew=skew)
    long = [dispatch("plain", {"plain.s.a": ["sleep:4"]}) for _ in range(4)]
    late = dispatch("plain", delay=1.5)
    tried = dispatch("plain", {"plain.s.a": ["retry:1.5", "ok"]})
    slept = dispatch("ledger")
    parked = dispatch("waiting")
    eventually(lambda: status(parked) == states.WAITING)
    workflows.publish("waiting.go", correlation=key_of(parked))
    finished(*long, late, tried, slept, parked)
    assert [len(calls(handle, "plain.s.a")) for handle in (*long, late, tried)] == [1, 1, 1, 1, 1, 2]
    assert {status(handle) for handle in (*long, late, tried, slept, parked)} == {states.COMPLETED}
    waited = f"(SELECT min(started_at) FROM crash_call WHERE run_id = '{late.run_id}')"
    born = f"(SELECT created_at FROM workflow_run WHERE id = '{late.run_id}')"
    assert 1.5 <= seconds_between(born, waited) < 30
    pause = f"(SELECT max(started_at) - min(started_at) FROM crash_call WHERE run_id = '{tried.run_id}')"
    assert 1.5 <= seconds_between("interval '0'", pause) < 30
    invariants.check(exact=True)


@pytest.mark.crash
@pytest.mark.parametrize(("use_tz", "zone"), [(False, "Asia/Kolkata"), (True, "America/St_Johns")])
def test_workers_in_any_time_zone_keep_the_time(workers: Launcher, use_tz: bool, zone: str) -> None:
    workers.start(django={"USE_TZ": use_tz, "TIME_ZONE": zone})
    late = dispatch("plain", {"plain.s.a": ["retry:1", "ok"]}, delay=1)
    expired = dispatch("short-wait")
    slept = dispatch("ledger")
    begun = time.monotonic()
    finished(late, expired, slept)
    assert time.monotonic() - begun > 2
    assert [status(handle) for handle in (late, slept)] == [states.COMPLETED] * 2
    assert node(expired, "short-wait.s").error["code"] == "WAIT_TIMEOUT"
    run = Run.objects.get(pk=late.run_id)
    assert run.created_at <= run.started_at <= run.finished_at
    assert Run.objects.filter(pk=late.run_id, finished_at__gt=Now() - timedelta(minutes=5)).exists()
    invariants.check(exact=True)


# --- in the caller's own process: every pair of USE_TZ and TIME_ZONE ------------------------------


def patient(state: dict[str, Any], ctx: Any) -> None:
    ctx.step.sleep("nap", 100)


def hesitant(state: dict[str, Any], ctx: Any) -> None:
    if ctx.attempt == 1:
        raise Retry(timedelta(seconds=100))


CLOCKWORK = Workflow(
    "clockwork",
    stages=[
        Stage("sleep", actions=[Action("patient", patient)]),
        Stage("try", actions=[Action("hesitant", hesitant)]),
        Stage("wait", wait_for=WaitFor("clockwork.never", timeout=100)),
    ],
)


@pytest.mark.django_db
@pytest.mark.parametrize(("use_tz", "zone"), list(itertools.product([True, False], ZONES)))
def test_delays_sleeps_retries_and_timeouts_are_kept_whatever_the_zone(use_tz: bool, zone: str) -> None:
    with override_settings(USE_TZ=use_tz, TIME_ZONE=zone), registry.isolated():
        run_id = workflows.dispatch(CLOCKWORK, {}, delay=100).run_id
        for status_after in ("pending", "running", "running", "waiting"):
            drain(run_id)
            assert Run.objects.get(pk=run_id).status == status_after
            due = Job.objects.filter(run_id=run_id, available_at__gt=Now()).exists()
            parked = Node.objects.filter(run_id=run_id, wait_until__gt=Now()).exists()
            assert due or parked
            advance(98)
            drain(run_id)
            assert Run.objects.get(pk=run_id).status == status_after
            advance(3)
        drain(run_id)
        run = Run.objects.get(pk=run_id)
        assert (run.status, run.error["code"]) == ("compensated", "WAIT_TIMEOUT")
        assert run.created_at <= run.started_at <= run.finished_at
