"""The workflows that the crash and worker tests run, in workers and in the tests' own process alike."""

from __future__ import annotations

from tests.crash_app import gates
from tests.crash_app.parts import act
from tests.crash_app.trees import COUNT, random_workflow
from workflow import Pipeline, Stage, WaitFor, Workflow, parallel

_SIGHTS = [
    Stage(
        "two",
        actions=[parallel(act("async", "async"), act("queued", via="queue")), act("atomic", "atomic")],
    ),
    Stage("three", actions=[act("steps", "steps")]),
    Stage("wait", wait_for=WaitFor("tour.go", correlate="key")),
    Stage("last", actions=[act("end")]),
]
tour = Workflow("tour", stages=[Stage("one", actions=[act("plain")]), *_SIGHTS])
"""Meets every kind of boundary once; its claim begins it."""
gated_tour = Workflow(
    "gated-tour",
    pipelines=[Pipeline("tour", stages=[Stage("one", actions=[act("plain", when=gates.plain)]), *_SIGHTS])],
)
"""The same, begun by a boundary of its own, since its first action has a gate."""

plain = Workflow("plain", stages=[Stage("s", actions=[act("a")])])
calm = Workflow("calm", stages=[Stage("s", actions=[act("a", "async")])])
quick = Workflow("quick", stages=[Stage("s", actions=[act("a", "async", undo=False)])])
atomic = Workflow("atomic", stages=[Stage("s", actions=[act("a", "atomic")])])
brisk = Workflow(
    "brisk",
    stages=[
        Stage("s", actions=[act("first"), act("a", "atomic", timeout=1, compensate_attempts=1), act("b")])
    ],
)
atomic_pair = Workflow("atomic-pair", stages=[Stage("s", actions=[act("a", "atomic"), act("b")])])
pair = Workflow("pair", stages=[Stage("s", actions=[act("a"), act("b")])])
steady = Workflow("steady", stages=[Stage("s", actions=[act("a", "async"), act("b", "async")])])
aside = Workflow(
    "aside", stages=[Stage("s", actions=[parallel(act("a", "async"), act("b"), act("c", "atomic"))])]
)
booking = Workflow(
    "booking",
    stages=[
        Stage("one", actions=[act("stays"), act("room", "undoable"), act("seat", "aundoable", undo=False)]),
        Stage("last", actions=[act("end", "undoable")]),
    ],
)
"""Its steps are undone each on its own, between the actions, and those of the last action though it fails."""
ledger = Workflow("ledger", stages=[Stage("s", actions=[act("a", "steps")])])
asking = Workflow("asking", stages=[Stage("s", actions=[act("a", "asks")])])
aasking = Workflow("aasking", stages=[Stage("s", actions=[act("a", "aasks")])])
impatient = Workflow(
    "impatient", stages=[Stage("s", actions=[act("before"), act("a", timeout=0.5, attempts=2), act("after")])]
)
endless = Workflow("endless", stages=[Stage("s", actions=[act("a", timeout=None)])])
waiting = Workflow("waiting", stages=[Stage("s", wait_for=WaitFor("waiting.go", correlate="key"))])
queued_wait = Workflow(
    "queued-wait", stages=[Stage("s", wait_for=WaitFor("waiting.go", correlate="key"), via="queue")]
)
anyones = Workflow("anyones", stages=[Stage("s", wait_for=WaitFor("anyones.go"))])
short_wait = Workflow("short-wait", stages=[Stage("s", wait_for=WaitFor("short.never", timeout=1))])
wide = Workflow(
    "wide",
    stages=[
        Stage(
            "many", actions=[parallel([act(f"m{n}", "async", via="queue", undo=False) for n in range(20)])]
        ),
        Stage("after", actions=[act("end")]),
    ],
)
chain = Workflow(
    "chain",
    pipelines=[
        Pipeline(
            "one",
            stages=[
                Stage("a", actions=[act("plain"), act("queued", via="queue")], via="queue"),
                Stage("b", actions=[act("atomic", "atomic", via="queue")]),
                Stage("c", actions=[act("gated", when=gates.plain, via="queue")]),
            ],
        ),
        Pipeline("two", stages=[Stage("d", actions=[act("end")], via="queue")]),
    ],
)
"""One thing after another, in jobs of their own: a worker that has one of them goes on with the next."""
gated = Workflow(
    "gated", stages=[Stage("s", actions=[act("before"), act("a", when=gates.plain, timeout=0.5)])]
)
agated = Workflow(
    "agated", stages=[Stage("s", actions=[act("before"), act("a", when=gates.asynchronous, timeout=0.5)])]
)
restless = Workflow(
    "restless",
    stages=[Stage("s", actions=[act("before"), act("a", "async", timeout=0.5, attempts=2), act("after")])],
)
randoms = [random_workflow(number) for number in range(COUNT)]
for _definition in randoms:
    globals()[_definition.name] = _definition  # autodiscovery looks at module-level names
