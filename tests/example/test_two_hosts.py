"""Two hosts with the same crontab: the commands that both of them start are one run."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from workflow.models import Run


@pytest.mark.django_db(transaction=True)
def test_two_processes_that_dispatch_with_one_key_get_one_run(
    manage: Callable[..., subprocess.Popen[str]],
) -> None:
    command = ("workflow:dispatch", "order-fulfillment", "--input", '{"order_id": "T-1"}')
    both = [manage(*command, "--idempotency-key", "nightly-2026-03-04") for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    run = Run.objects.get()
    assert {text.splitlines()[0] for text in said} == {str(run.id)}
    assert run.idempotency_key == "nightly-2026-03-04"
