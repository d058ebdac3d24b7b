"""A run that a test plays by hand: paths instead of ordinals, one line for each thing that happens."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.plan.drive import Actor, Workers, checked
from tests.unit.plan.rules import Watch
from tests.unit.plan.simulator import Database, Row
from workflow import Action, Pipeline, Stage, Workflow
from workflow.plan import Answered, Ask, Completed, Failed, Move, Refused, Suspended, fault


def nothing(state: Any) -> None:
    """Stands for user code; what it does is the test's to say."""


def act(name: str, **options: Any) -> Action:
    return Action(name, nothing, **options)


def stage(name: str, *actions: Any, **options: Any) -> Stage:
    """A stage of these actions, or of one named `a`."""
    return Stage(name, actions=list(actions) or [act("a")], **options)


def flow(*stages: Any, **options: Any) -> Workflow:
    return Workflow("w", stages=list(stages), **options)


def flows(*pipelines: list[Any], **options: Any) -> Workflow:
    """A workflow of pipelines `p0`, `p1`, ..., each given as its stages."""
    made = [Pipeline(f"p{place}", stages) for place, stages in enumerate(pipelines)]
    return Workflow("w", pipelines=made, **options)


class Scene:
    """One run, the workers that drive it, and a watch that looks at every boundary."""

    def __init__(self, workflow: Workflow, value: Any = None) -> None:
        self.checks = True
        """Whether what `output=` is asked is answered at once."""
        self.db = Database(workflow, value)
        self.watch = Watch(self.db)
        self.workers = Workers(self.db, self.watch)

    # --- looking --------------------------------------------------------------------------------

    def at(self, path: str) -> int:
        return self.db.tree.by_path[path].ordinal

    def row(self, path: str) -> Row:
        return self.db.rows[self.at(path)]

    def status(self, *paths: str) -> list[str]:
        return [self.row(path).status for path in paths]

    def failure(self, path: str) -> dict[str, Any]:
        error = self.row(path).failure
        assert error is not None
        return error

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.db.state)
        return found

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.db.error or "null")
        return found

    def story(self, path: str | None = None) -> list[str]:
        """The names of the run's history entries, or of one node's."""
        return [entry.name for entry in self.db.history if path is None or entry.node == path]

    def jobs(self) -> list[str]:
        """The paths of the nodes that have a job; the run's own is `compensate`."""
        return [self.db.tree.nodes[n].path or job.kind for n, job in sorted(self.db.jobs.items())]

    # --- what happens ---------------------------------------------------------------------------

    def take(self, path: str | None = None) -> Actor:
        """A worker claims the job that is due, and settles its first boundary."""
        actor = self.workers.take(path)
        self._checked(actor, Move())
        return actor

    def tell(self, actor: Actor, *facts: Any) -> Move:
        return self._checked(actor, self.workers.tell(actor, *facts))

    def _checked(self, actor: Actor, move: Move) -> Move:
        """Answers at once what `output=` is asked, if it is to be; the last move."""
        while self.checks and (asked := [ask for ask in actor.asked if ask.checks]):
            move = self.workers.tell(actor, checked(asked[0], self.db.tree))
        return move

    def done(self, actor: Actor, path: str, output: Any = None) -> Move:
        return self.tell(actor, self.completed(path, output))

    def fail(self, actor: Actor, path: str, delay: float = 0.0, *, final: bool = False) -> Move:
        return self.tell(actor, self.failed(path, delay, final=final))

    def asked(self, actor: Actor, path: str) -> Ask:
        """What user code of this node is being asked."""
        (ask,) = [ask for ask in actor.asked if ask.ordinal == self.at(path)]
        return ask

    def answer(self, actor: Actor, path: str, go: bool = True, correlation: str | None = None) -> Move:
        return self.tell(actor, Answered(self.at(path), go, correlation))

    def refuse(self, actor: Actor, path: str, code: str = "PRECHECK_FAILED") -> Move:
        return self.tell(actor, Refused(self.at(path), fault(code, "it raised", path)))

    def suspend(self, actor: Actor, path: str, delay: float = 60.0) -> Move:
        return self.tell(actor, Suspended(self.at(path), delay))

    def lose(self, actor: Actor, code: str = "LEASE_HEARTBEAT_LOST") -> None:
        """The worker dies, the sweep sees it, and the job is due again."""
        self.workers.crash(actor, code)
        self.wait()

    def give_back_unbegun(self, actor: Actor) -> None:
        """The claim that has begun the run is never answered: its worker gives the job back without an attempt."""
        self.workers.actors.remove(actor)
        job = self.db.jobs[actor.lease.ordinal]
        job.token, job.attempt = None, job.attempt - 1
        job.last_error = "UNBEGUN: the claim was never answered"

    def disconnect(self, actor: Actor) -> None:
        """The worker's connection breaks as it settles: it gives the job back, and says nothing on it."""
        self.workers.actors.remove(actor)
        job = self.db.jobs[actor.lease.ordinal]
        job.token, job.attempt = None, job.attempt - 1

    def wait(self, seconds: float = 3600.0) -> None:
        self.db.now += seconds

    # --- facts ----------------------------------------------------------------------------------

    def completed(self, path: str, output: Any = None) -> Completed:
        return Completed(self.at(path), output, None if output is None else json.dumps(output))

    def failed(self, path: str, delay: float = 0.0, *, final: bool = False) -> Failed:
        return Failed(self.at(path), fault("ACTION_FAILED", f"{path} failed", path), delay, final)
