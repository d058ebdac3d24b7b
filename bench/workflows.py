"""What the benchmarks run: handlers that do nothing, in each shape a workflow can have."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from workflow import Action, Fatal, Retry, Stage, WaitFor, Workflow, parallel


def plain(state: dict[str, Any]) -> None:
    """Nothing, in a thread."""


async def coroutine(state: dict[str, Any]) -> None:
    """Nothing, on the loop."""


def fatal(state: dict[str, Any]) -> None:
    """Turns the saga back."""
    raise Fatal("benchmark")


def grow(state: dict[str, Any]) -> dict[str, str]:
    """Adds as many bytes as the input says to the state, such as no compression makes fewer."""
    return {f"k{len(state)}": secrets.token_hex(state["bytes"] // 2)}


async def linger(state: dict[str, Any]) -> None:
    """Takes as many seconds as the input says, and no CPU."""
    await asyncio.sleep(state["seconds"])


def sleep(state: dict[str, Any], ctx: Any) -> None:
    """A durable sleep, longer than any benchmark."""
    ctx.step.sleep("night", 10 * 86_400)


def flaky(state: dict[str, Any], ctx: Any) -> None:
    """Fails once."""
    if ctx.attempt == 1:
        raise Retry(0.01)


def ledger(state: dict[str, Any], ctx: Any) -> None:
    """A step of each kind; the event comes before it is waited for."""
    ctx.step.run("run", int)
    ctx.step.sleep("sleep", 0.01)
    ctx.step.wait_for("wait-for", int, interval=0.01)
    ctx.step.wait_event("wait-event", "bench.own", correlate="order")


def _five(run: Any, **options: Any) -> list[Action]:
    return [Action(f"a{i}", run, **options) for i in range(5)]


five_sync = Workflow("five-sync", stages=[Stage("s", actions=_five(plain))])
five_async = Workflow("five-async", stages=[Stage("s", actions=_five(coroutine))])
twenty_parallel = Workflow(
    "twenty-parallel", stages=[Stage("s", actions=parallel([Action(f"a{i}", plain) for i in range(20)]))]
)
five_queued_stages = Workflow(
    "five-queued-stages", stages=[Stage(f"s{i}", actions=[Action("a", plain)], via="queue") for i in range(5)]
)
compensate_four = Workflow(
    "compensate-four",
    stages=[Stage("s", actions=[*_five(plain, compensate=plain)[:4], Action("bad", fatal)])],
)
hundred_stages = Workflow(
    "hundred-stages", stages=[Stage(f"s{i}", actions=[Action("a", plain)]) for i in range(100)]
)
one_wait = Workflow("one-wait", stages=[Stage("w", wait_for=WaitFor("bench.go"))])
own_wait = Workflow("own-wait", stages=[Stage("w", wait_for=WaitFor("bench.own", correlate="order"))])
growing = Workflow("growing", stages=[Stage("s", actions=_five(grow))])
lingering = Workflow("lingering", stages=[Stage("s", actions=_five(linger))])
one_linger = Workflow("one-linger", stages=[Stage("s", actions=[Action("a", linger)])])
sleeper = Workflow("sleeper", stages=[Stage("s", actions=[Action("a", sleep)])])
_members = [*(Action(f"a{i}", plain, via="queue") for i in range(2)), Action("c", linger)]
each_kind = Workflow(
    "each-kind",
    stages=[
        Stage("members", actions=[parallel(_members), Action("b", plain)]),
        Stage("flaky", actions=[Action("a", flaky)]),
        Stage("ledger", actions=[Action("a", ledger)]),
        Stage("wait", wait_for=WaitFor("bench.own", correlate="order")),
    ],
)
