"""`shop_demo` and `shop_stream` as a person would run them: real processes, real workers, a real SIGKILL."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from django.db import OperationalError, connection
from django.db.models import F

from example_project.shop.management.commands.shop_demo import leaving_on_signals
from example_project.shop.models import Order, Product
from workflow.models import Run

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

Manage = Callable[..., subprocess.Popen[str]]


def read_until(child: subprocess.Popen[str], text: str) -> str:
    """What the process prints, up to the line that contains `text`."""
    assert child.stdout
    lines = []
    for line in child.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    pytest.fail(f"{text!r} was never printed:\n{''.join(lines)}")


def read_all(child: subprocess.Popen[str]) -> str:
    output, _ = child.communicate(timeout=180)
    return output


def workers_of(output: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"worker (\d+) started", output)]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_the_demo_survives_a_killed_worker_and_its_books_balance(manage: Manage) -> None:
    demo = manage("shop_demo")
    output = read_all(demo)
    assert demo.returncode == 0, output
    assert "WRONG" not in output
    assert re.search(r"worker \d+ killed \(SIGKILL\)", output)
    assert re.search(r"\d+ completed, \d+ compensated, 0 failed", output)
    assert "Look at a run, with DATABASE_URL set as it is now:" in output
    assert len(workers_of(output)) == 3
    assert all(is_gone(pid) for pid in workers_of(output))

    runs = re.findall(r"^\S+ manage\.py workflow:status (\S+)$", output, re.MULTILINE)
    assert len(runs) >= 2
    assert read_all(manage("workflow:status", runs[0])).count("order-fulfillment") >= 1


def test_a_shop_that_does_not_add_up_fails_the_demo(manage: Manage) -> None:
    demo = manage("shop_demo", "--no-kill", SHOP_PAYMENT_TIMEOUT="5")
    output = read_until(demo, "orders placed")
    # Somebody takes a box of tea home.
    Product.objects.filter(branch="demo", sku="TEA-MINT-50").update(quantity=F("quantity") - 1)
    output += read_all(demo)
    assert demo.returncode == 1, output
    assert "WRONG stock sold + stock left = stock at start" in output
    assert "the books do not balance" in output


def test_a_demo_that_is_not_over_in_time_says_what_is_open_and_leaves_no_worker(manage: Manage) -> None:
    demo = manage("shop_demo", "--limit", "4")
    output = read_all(demo)
    assert demo.returncode == 1
    assert "not over after 4 s" in output
    assert "never-pays" in output
    assert workers_of(output)
    assert all(is_gone(pid) for pid in workers_of(output))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_worker(manage: Manage, number: int) -> None:
    demo = manage("shop_demo")
    output = read_until(demo, "orders placed")
    demo.send_signal(number)
    output += read_all(demo)
    assert demo.returncode == 130, output
    assert "Traceback" not in output
    assert all(is_gone(pid) for pid in workers_of(output))


def fails(interrupted: bool) -> None:
    """A statement that a signal has cut off leaves a connection on which the next one fails."""
    with leaving_on_signals():
        try:
            if interrupted:
                signal.raise_signal(signal.SIGTERM)
        finally:
            raise OperationalError("another command is already in progress")


def test_what_an_interruption_makes_of_the_connection_is_no_failure_of_the_demo() -> None:
    with pytest.raises(KeyboardInterrupt):
        fails(interrupted=True)
    with pytest.raises(OperationalError):
        fails(interrupted=False)


def test_an_interruption_that_is_lost_in_a_finaliser_is_heard_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: printed.append(lost.exc_type))

    class Finalised:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    class Wrong:
        def __del__(self) -> None:
            raise ValueError

    reached: list[bool] = []

    def lost() -> None:
        with leaving_on_signals() as heed:
            heed()
            Finalised()
            reached.append(True)
            Wrong()
            heed()

    with pytest.raises(KeyboardInterrupt):
        lost()
    assert reached
    Wrong()
    assert printed == [ValueError, ValueError], "nothing but the interruption is kept quiet"


def test_only_one_demo_runs_at_a_time(manage: Manage) -> None:
    first = manage("shop_demo")
    read_until(first, "orders placed")
    second = manage("shop_demo")
    assert "another shop_demo is running" in read_all(second)
    assert second.returncode == 1
    assert Order.objects.filter(branch="demo").exists(), "the first one's orders are untouched"


def test_a_demo_clears_up_after_one_that_was_killed(manage: Manage) -> None:
    first = manage("shop_demo")
    output = read_until(first, "orders placed")
    first.kill()
    for pid in workers_of(output):
        os.kill(pid, signal.SIGKILL)
    first.wait(20)
    abandoned = set(Run.objects.filter(finished_at=None).values_list("pk", flat=True))

    second = manage("shop_demo", "--limit", "4")
    read_until(second, "orders placed")
    assert not Run.objects.filter(pk__in=abandoned, status__in=["pending", "running", "waiting"]).exists()


def test_the_stream_takes_orders_until_it_is_told_to_stop(manage: Manage) -> None:
    stream = manage("shop_stream", "--every", "0.1")
    read_until(stream, " run ")
    read_until(stream, " run ")
    stream.send_signal(signal.SIGTERM)
    assert "Traceback" not in read_all(stream)
    assert stream.returncode == 0
    assert Run.objects.filter(correlation_id="shop-stream").count() >= 2
    assert Order.objects.filter(branch="stream").count() == Run.objects.count()


def test_the_stream_with_a_worker_sees_its_orders_through(manage: Manage) -> None:
    manage("workflow:worker", SHOP_PAYMENT_TIMEOUT="3")
    stream = manage("shop_stream", "--every", "0.1", "--count", "6")
    output = read_all(stream)
    assert stream.returncode == 0, output
    statuses = set(Run.objects.values_list("status", flat=True))
    assert Run.objects.count() == 6
    assert statuses <= {"completed", "compensated"}


def test_the_stream_survives_a_lost_connection(manage: Manage) -> None:
    stream = manage("shop_stream", "--every", "0.1")
    read_until(stream, " run ")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    read_until(stream, "no database, trying again")
    read_until(stream, " run ")
    stream.terminate()
    assert stream.wait(20) == 0


def test_a_worker_that_nobody_meant_to_end_fails_the_demo_and_the_others_end_too(manage: Manage) -> None:
    demo = manage("shop_demo")
    output = read_until(demo, "orders placed")
    first = workers_of(output)[0]
    os.kill(first, signal.SIGKILL)
    output += read_all(demo)
    assert demo.returncode == 1
    assert f"worker {first} ended by itself with exit status -9" in output
    assert all(is_gone(pid) for pid in workers_of(output))
