"""The commands on runs that the engine brought where they are, and what the engine then makes of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pydantic import BaseModel, Field, SecretStr

from tests.support import rows
from workflow import Action, Pipeline, RunConflict, Stage, WaitFor, Workflow, parallel, workflows
from workflow.models import Job, Run
from workflow.registry import registry
from workflow.testing import advance, drain

pytestmark = pytest.mark.django_db


class Shop:
    """Counts what is done and undone, and fails where it is told to."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.undone: list[str] = []
        self.broken: set[str] = set()

    def act(self, name: str, output: Any = None, **options: Any) -> Action:
        def run(state: Any) -> Any:
            self.done[name] += 1
            if name in self.broken:
                raise RuntimeError(name)
            return {name: self.done[name]} if output is None else output

        def undo(state: Any) -> None:
            self.undone.append(name)

        return Action(name, run, compensate=undo, attempts=1, **options)


@pytest.fixture
def shop() -> Any:
    with registry.isolated():
        yield Shop()


def flow(shop: Shop, **options: Any) -> Workflow:
    return Workflow(
        "flow",
        pipelines=[
            Pipeline("one", stages=[Stage("s", actions=[shop.act("a"), shop.act("b", [1, 2])])]),
            Pipeline(
                "two",
                stages=[
                    parallel(
                        Stage("left", actions=[shop.act("l")]),
                        Stage("right", actions=[shop.act("r1"), shop.act("r2", via="queue")], via="queue"),
                    ),
                    Stage("last", actions=[shop.act("z")]),
                ],
            ),
        ],
        **options,
    )


def waiting(shop: Shop) -> Workflow:
    return Workflow(
        "waiting",
        stages=[
            Stage("first", actions=[shop.act("a")]),
            parallel(
                Stage("paid", wait_for=WaitFor("payment", correlate="order")),
                Stage("seen", wait_for=WaitFor("seen", pick=lambda event: 1 / 0), via="queue"),
            ),
            Stage("then", actions=[shop.act("z")]),
        ],
    )


@pytest.mark.parametrize("broken", ["a", "b", "l", "r1", "r2", "z"])
def test_a_retry_does_again_what_failed_and_nothing_else(shop: Shop, broken: str) -> None:
    shop.broken = {broken}
    handle = workflows.dispatch(flow(shop, on_failure="halt"), {"in": 0})
    drain()
    assert handle.status().run.status == "failed"
    shop.broken = set()
    state = Run.objects.get().state
    workflows.retry(handle.run_id)
    assert Run.objects.get().state == state
    drain()

    found = handle.status().run
    assert found.status == "completed"
    assert shop.done == Counter({name: 1 + (name == broken) for name in ("a", "b", "l", "r1", "r2", "z")})
    assert found.state == {
        "in": 0,
        "b": [1, 2],
        **{name: shop.done[name] for name in ("a", "l", "r1", "r2", "z")},
    }
    rows.check_whole(handle.run_id)


def test_a_retry_from_a_path_does_all_of_it_again(shop: Shop) -> None:
    shop.broken = {"z"}
    handle = workflows.dispatch(flow(shop, on_failure="halt"))
    drain()
    shop.broken = set()
    workflows.retry(handle.run_id, from_node="two.right.r1")
    drain()
    assert handle.status().run.status == "completed"
    assert shop.done == Counter(a=1, b=1, l=1, r1=2, r2=2, z=2)
    assert {node.status for node in handle.status().nodes} == {"completed"}
    rows.check_whole(handle.run_id)


def test_a_run_can_fail_and_be_retried_over_and_over(shop: Shop) -> None:
    shop.broken = {"l", "r2"}
    handle = workflows.dispatch(flow(shop, on_failure="halt"))
    for _ in range(3):
        drain()
        assert handle.status().run.status == "failed"
        workflows.retry(handle.run_id)
    shop.broken = set()
    drain()
    assert handle.status().run.status == "completed"
    assert rows.names(handle.run_id).count("resumed") == 3
    rows.check_whole(handle.run_id)


def test_a_saga_that_was_undone_is_refused_a_retry(shop: Shop) -> None:
    shop.broken = {"z"}
    handle = workflows.dispatch(flow(shop))
    drain()
    assert handle.status().run.status == "compensated"
    with pytest.raises(RunConflict, match="compensated"):
        workflows.retry(handle.run_id)


def test_a_resume_answers_every_wait_and_the_run_completes(shop: Shop) -> None:
    handle = workflows.dispatch(waiting(shop), {"order": "o"})
    drain()
    assert handle.status().run.status == "waiting"
    workflows.resume(handle.run_id, {"by": "hand"})
    drain()
    found = handle.status()
    assert found.run.status == "completed"
    assert found.run.state == {"order": "o", "a": 1, "by": "hand", "z": 1}
    assert {n.path: n.output for n in found.nodes if n.path.endswith(("paid", "seen"))} == {
        "waiting.paid": {"by": "hand"},
        "waiting.seen": {"by": "hand"},
    }
    rows.check_whole(handle.run_id)


def test_a_wait_that_was_answered_by_hand_is_not_answered_by_its_event_nor_its_deadline(shop: Shop) -> None:
    handle = workflows.dispatch(waiting(shop), {"order": "o"})
    drain()
    workflows.resume(handle.run_id, {"by": "hand"})
    workflows.publish("payment", {"by": "event"}, correlation="o")
    advance(86_401)
    drain()
    assert handle.status().run.state["by"] == "hand"


def test_a_retry_takes_the_event_again_that_a_failed_pick_had(shop: Shop) -> None:
    picks: list[Any] = []

    def pick(event: Any) -> Any:
        picks.append(event.payload)
        if len(picks) == 1:
            raise RuntimeError("not yet")
        return {"picked": event.payload}

    definition = Workflow(
        "picky", on_failure="halt", stages=[Stage("s", wait_for=WaitFor("t", correlate="order", pick=pick))]
    )
    handle = workflows.dispatch(definition, {"order": "o"})
    workflows.publish("t", 5, correlation="o")
    drain()
    assert handle.status().run.status == "failed"
    workflows.retry(handle.run_id)
    drain()
    assert handle.status().run.state == {"order": "o", "picked": 5}


def test_a_cancelled_run_stays_cancelled_whatever_comes(shop: Shop) -> None:
    handle = workflows.dispatch(waiting(shop), {"order": "o"})
    drain()
    workflows.cancel(handle.run_id)
    workflows.publish("payment", correlation="o")
    workflows.publish("seen")
    advance(86_401)
    drain()
    found = handle.status()
    assert found.run.status == "cancelled"
    assert shop.done == Counter(a=1)
    assert shop.undone == []
    assert Job.objects.count() == 0
    rows.check_whole(handle.run_id)


def test_a_cancel_with_compensation_undoes_what_was_done_newest_first(shop: Shop) -> None:
    stages = [
        Stage("s", actions=[shop.act("a"), shop.act("b")]),
        Stage("wait", wait_for=WaitFor("never")),
        Stage("then", actions=[shop.act("z")]),
    ]
    handle = workflows.dispatch(Workflow("undone", stages=stages))
    drain()
    workflows.cancel(handle.run_id, "no longer", compensate=True)
    drain()
    found = handle.status()
    assert (found.run.status, found.run.error) == ("compensated", None)
    assert shop.undone == ["b", "a"]
    assert {n.path: n.status for n in found.nodes}["undone.then.z"] == "cancelled"
    rows.check_whole(handle.run_id)


def test_a_run_that_failed_with_everything_done_completes_after_a_retry(shop: Shop) -> None:
    handle = workflows.dispatch(flow(shop, on_failure="halt"))
    rows.start(handle.run_id)
    for node in reversed(handle.status().nodes):
        rows.complete(handle.run_id, node.path)
    rows.end(handle.run_id, "failed", rows.fault("", "STUCK_RUN_REAPED"))
    workflows.retry(handle.run_id)
    drain()
    assert handle.status().run.status == "completed"
    assert shop.done == Counter()


def test_a_delayed_run_starts_when_it_is_due(shop: Shop) -> None:
    handle = workflows.dispatch(flow(shop), delay=60)
    drain()
    assert handle.status().run.status == "pending"
    advance(60)
    drain()
    assert handle.status().run.status == "completed"


def test_higher_priority_goes_first(shop: Shop) -> None:
    order: list[int] = []
    definition = Workflow("ordered", stages=[Stage("s", run=lambda state: order.append(state["p"]))])
    for priority in (0, 5, -5, 10):
        workflows.dispatch(definition, {"p": priority}, priority=priority)
    workflows.dispatch_many(definition, [{"p": 7}], priority=7)
    drain()
    assert order == [10, 7, 5, 0, -5]


def test_a_secret_and_an_alias_reach_the_handler_as_its_own_model_reads_them() -> None:
    class Login(BaseModel):
        user_name: str = Field(alias="userName")
        password: SecretStr

    seen: list[tuple[str, str]] = []

    def use(login: Login) -> None:
        seen.append((login.user_name, login.password.get_secret_value()))

    with registry.isolated():
        definition = Workflow(
            "login", input=Login, stages=[Stage("s", actions=[Action("use", use, input=Login)])]
        )
        workflows.dispatch(definition, {"userName": "u", "password": "hunter2"})
        drain()
    assert seen == [("u", "hunter2")]


def test_pruning_leaves_nothing_of_a_run_that_the_engine_ran(shop: Shop) -> None:
    workflows.dispatch(flow(shop))
    drain()
    Run.objects.update(finished_at="2000-01-01T00:00Z")
    assert workflows.prune(1) == 1
    assert set(rows.counts().values()) == {0}


@pytest.mark.parametrize("via", ["inline", "queue"])
def test_a_member_of_a_group_that_is_retried_lets_what_follows_begin_once(shop: Shop, via: Any) -> None:
    """The other members are not called again (C81)."""
    members = [shop.act(f"m{n}", via=via) for n in range(20)]
    stages = [Stage("many", actions=[parallel(members)]), Stage("next", actions=[shop.act("after", via=via)])]
    shop.broken.add("m7")
    handle = workflows.dispatch(Workflow("flow", stages=stages, on_failure="halt"), {})
    drain()
    assert (handle.status().run.status, shop.done["after"]) == ("failed", 0)
    shop.broken.clear()
    workflows.retry(handle.run_id)
    drain()
    assert handle.status().run.status == "completed"
    assert shop.done == {**{f"m{n}": 1 for n in range(20)}, "m7": 2, "after": 1}
