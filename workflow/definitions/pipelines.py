"""Pipeline and Workflow: what can be dispatched."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from threading import Lock
from typing import Any, ClassVar, Literal, cast

from pydantic import TypeAdapter

from workflow.definitions.groups import Groups, Parallel, make_groups
from workflow.definitions.rules import (
    MAX_NODES,
    MAX_VERSION,
    Definition,
    check_choice,
    check_integer,
    check_name,
    check_schema,
    complete_schema,
    fault,
    guessing,
    quote,
    show,
)
from workflow.definitions.secrets import secret_keys
from workflow.definitions.stages import Stage
from workflow.definitions.trees import Tree, compile_tree

OnFailure = Literal["compensate", "halt"]

_wrapping = Lock()


class Pipeline(Definition):
    """Stages in order (or in groups). Part of workflows, and can be dispatched on its own."""

    kind: ClassVar[str] = "pipeline"

    name: str
    items: Groups[Stage]
    size: int

    @guessing
    def __init__(self, name: str, stages: Any) -> None:
        self.name = check_name("Pipeline", name)
        place = f"Pipeline {quote(name)}"
        self.items = make_groups(stages, Stage, place, "stages=")
        self.size = _check_size(place, 1 + sum(stage.size for group in self.items for stage in group))

    def as_workflow(self) -> Workflow:
        """The version 1 workflow of the same name that runs this pipeline alone; always the same object."""
        with _wrapping:  # two threads that dispatch it first must not register two
            if "_workflow" not in self.__dict__:
                self.__dict__["_workflow"] = Workflow(self.name, pipelines=[self])
            return cast(Workflow, self.__dict__["_workflow"])


class Workflow(Definition):
    """A named, versioned saga: ``stages`` (one pipeline of its own name) or ``pipelines``, in order.

    ``on_failure`` is "compensate" (undo what completed, newest first) or "halt" (leave it standing).
    ``compatible_versions`` are other versions whose runs this definition may take on.
    Raises ``WorkflowInvalid``.
    """

    kind: ClassVar[str] = "workflow"

    name: str
    version: int
    input: Any
    input_adapter: TypeAdapter[Any] | None
    pipelines: tuple[Pipeline, ...]
    on_failure: OnFailure
    compatible_versions: tuple[int, ...]
    size: int

    @guessing
    def __init__(
        self,
        name: str,
        *,
        version: int = 1,
        input: Any = None,  # noqa: A002  the contract's name
        stages: Any = None,
        pipelines: Any = None,
        on_failure: OnFailure = "compensate",
        compatible_versions: Iterable[int] = (),
    ) -> None:
        self.name = check_name("Workflow", name)
        place = self._place
        self.version = check_integer(version, place, "version=", MAX_VERSION)
        self.input = input
        self.input_adapter = check_schema(input, place, "input=")
        self.pipelines = _make_pipelines(name, place, stages, pipelines)
        self.on_failure = cast(
            OnFailure, check_choice(on_failure, ("compensate", "halt"), place, "on_failure=")
        )
        self.compatible_versions = _check_versions(compatible_versions, place)
        self.size = _check_size(place, sum(pipeline.size for pipeline in self.pipelines))

    def __repr__(self) -> str:
        return f"<Workflow {self.__dict__.get('name', '?')} v{self.__dict__.get('version', '?')}>"

    @cached_property
    def tree(self) -> Tree:
        """The nodes of a run, compiled when first asked for; from then on the definition is in use."""
        complete_schema(self.input_adapter, self._place, "input=")
        for pipeline in self.pipelines:
            for group in pipeline.items:
                for stage in group:
                    stage.seal()
        return compile_tree(self)

    @cached_property
    def secret_keys(self) -> frozenset[str]:
        """The keys of a run's data, in lower case, that its schemas declare secret; found out when first asked for."""
        _ = self.tree  # resolves the schemas
        return secret_keys(self)

    def serves(self, version: int) -> bool:
        """Whether a run that was started under ``version`` may go on under this definition."""
        return version == self.version or version in self.compatible_versions

    @property
    def _place(self) -> str:
        return f"Workflow {quote(self.name)}"


def _make_pipelines(name: str, place: str, stages: Any, pipelines: Any) -> tuple[Pipeline, ...]:
    if (stages is None) == (pipelines is None):
        found = "neither" if stages is None else "both"
        raise fault(place, f"takes exactly one of stages= and pipelines=, and was given {found}")
    if pipelines is None:
        groups = make_groups(stages, Stage, place, "stages=")
        return (Pipeline(name, [Parallel(group) for group in groups]),)
    in_order = make_groups(pipelines, Pipeline, place, "pipelines=", concurrent=False)
    return tuple(pipeline for (pipeline,) in in_order)


def _check_versions(versions: object, place: str) -> tuple[int, ...]:
    if isinstance(versions, str) or not isinstance(versions, Iterable):
        raise fault(place, f"compatible_versions= takes a list of versions, not {show(versions)}")
    return tuple(
        check_integer(version, place, "each of compatible_versions=", MAX_VERSION) for version in versions
    )


def _check_size(place: str, size: int) -> int:
    if size > MAX_NODES:
        raise fault(place, f"has {size:,} nodes, at most {MAX_NODES:,} are allowed")
    return size
