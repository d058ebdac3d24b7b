"""What holds of every run whatever happened to its workers: `check()` asks the database for all of it.

Each rule is a question for rows that break it. Rules in SQL need no definition; the others walk a run's
history entry by entry and compare it with the tree and with what handlers wrote down (`crash_call`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db import connection, transaction

from workflow import states
from workflow.definitions import Action, Tree
from workflow.errors import FailureCode
from workflow.plan import nest, seed
from workflow.registry import registry

ALWAYS = {
    "history counts from 1 to the run's seq without a gap": """
        SELECT r.id, r.status, r.seq, count(e.seq), min(e.seq), max(e.seq)
        FROM workflow_run AS r LEFT JOIN workflow_runevent AS e ON e.run_id = r.id
        GROUP BY r.id HAVING count(e.seq) <> r.seq OR coalesce(max(e.seq), 0) <> r.seq
    """,
    "a run that is over has no live node": """
        SELECT r.id, r.status, n.path, n.status FROM workflow_run AS r JOIN workflow_node AS n ON n.run_id = r.id
        WHERE r.finished_at IS NOT NULL AND n.status IN ('pending', 'running', 'waiting')
    """,
    "a run that is over has no job": """
        SELECT r.id, r.status, j.kind, j.node_id FROM workflow_run AS r JOIN workflow_job AS j ON j.run_id = r.id
        WHERE r.finished_at IS NOT NULL AND j.kind <> 'check'
    """,
    "what lies beneath a terminal node is terminal": """
        SELECT p.run_id, p.path, p.status, n.path, n.status
        FROM workflow_node AS p JOIN workflow_node AS n
          ON n.run_id = p.run_id AND n.path LIKE p.path || '.%'
        WHERE p.status NOT IN ('pending', 'running', 'waiting') AND n.status IN ('pending', 'running', 'waiting')
    """,
    "a unit's job belongs to a node that is live and not parked": """
        SELECT j.run_id, j.kind, n.path, n.status FROM workflow_job AS j
        LEFT JOIN workflow_node AS n ON n.id = j.node_id
        WHERE j.kind = 'unit' AND (n.id IS NULL OR n.status NOT IN ('pending', 'running', 'waiting')
                                   OR n.wait_event IS NOT NULL)
    """,
    "a compensation has its job, and a run that goes forward has none": """
        SELECT r.id, r.status, j.kind FROM workflow_run AS r
        LEFT JOIN workflow_job AS j ON j.run_id = r.id AND j.kind = 'compensate'
        WHERE (r.status = 'compensating') <> (j.id IS NOT NULL)
    """,
    "a completed action has the one history entry that completed it": """
        SELECT n.run_id, n.path, n.status, n.completed_seq, e.name FROM workflow_node AS n
        LEFT JOIN workflow_runevent AS e
          ON e.run_id = n.run_id AND e.seq = n.completed_seq AND e.node = n.path AND e.name = 'action.completed'
        WHERE n.kind = 'action' AND n.status IN ('completed', 'compensated') AND e.seq IS NULL
    """,
    "a stage ends once, unless its run was retried": """
        SELECT e.run_id, e.node, count(*) FROM workflow_runevent AS e
        WHERE e.name IN ('stage.completed', 'stage.failed', 'stage.skipped')
          AND NOT EXISTS (SELECT 1 FROM workflow_runevent AS r
                          WHERE r.run_id = e.run_id AND r.name = 'resumed' AND r.data ? 'retry')
        GROUP BY 1, 2 HAVING count(*) > 1
    """,
    "an event serves one wait of a run": """
        SELECT w.run_id, w.event_id, count(*) FROM (
            SELECT run_id, event_id FROM workflow_node WHERE event_id IS NOT NULL
            UNION ALL
            SELECT run_id, event_id FROM workflow_step WHERE event_id IS NOT NULL
        ) AS w JOIN workflow_event AS e ON e.id = w.event_id AND e.correlation IS NOT NULL
        GROUP BY w.run_id, w.event_id HAVING count(*) > 1
    """,
    "what is parked says for what, and nothing else does": """
        SELECT n.run_id, n.path, n.status, n.wait_event, n.wait_outcome FROM workflow_node AS n
        WHERE (n.wait_event IS NOT NULL)
           <> (n.kind = 'stage' AND n.status = 'waiting' AND n.wait_outcome IS NULL)
    """,
    "a run waits only while something is parked": """
        SELECT r.id FROM workflow_run AS r
        WHERE r.status = 'waiting' AND NOT EXISTS (
            SELECT 1 FROM workflow_node AS n WHERE n.run_id = r.id AND n.status = 'waiting' AND n.kind = 'stage')
    """,
    "no live run without a job, a wait or a timer": """
        SELECT r.id, r.workflow, r.status FROM workflow_run AS r
        WHERE r.finished_at IS NULL
          AND NOT EXISTS (SELECT 1 FROM workflow_job AS j WHERE j.run_id = r.id AND j.kind <> 'check')
          AND NOT EXISTS (SELECT 1 FROM workflow_node AS n WHERE n.run_id = r.id AND n.wait_event IS NOT NULL)
    """,
    "compensation runs against the order of completion, and undoes nothing twice": """
        SELECT u.* FROM (
            SELECT e.run_id, e.seq, e.node, n.completed_seq,
                   lag(n.completed_seq) OVER (PARTITION BY e.run_id ORDER BY e.seq) AS before
            FROM workflow_runevent AS e JOIN workflow_node AS n ON n.run_id = e.run_id AND n.path = e.node
            WHERE e.name IN ('action.compensated', 'action.compensation_failed') AND e.data->>'step' IS NULL
        ) AS u WHERE u.completed_seq IS NULL OR u.completed_seq >= u.before
    """,
    "steps are undone in their places between the actions": """
        SELECT u.* FROM (
            SELECT e.run_id, e.seq, e.node, coalesce(s.completed_seq, n.completed_seq) AS completed,
                   lag(coalesce(s.completed_seq, n.completed_seq)) OVER (PARTITION BY e.run_id ORDER BY e.seq) AS before
            FROM workflow_runevent AS e JOIN workflow_node AS n ON n.run_id = e.run_id AND n.path = e.node
            LEFT JOIN workflow_step AS s ON s.run_id = e.run_id AND s.node_id = n.id AND s.phase = 'run'
                                        AND s.key = coalesce(e.data->>'step', e.data->'fields'->>'step')
            WHERE e.name IN ('action.compensated', 'action.compensation_failed')
               OR (e.name = 'log' AND e.data->>'message' LIKE 'step % compensated')
        ) AS u WHERE u.completed IS NULL OR u.completed > u.before
    """,
    "a step is undone once": """
        SELECT e.run_id, e.node, e.data->'fields'->>'step', count(*) FROM workflow_runevent AS e
        WHERE e.name = 'log' AND e.data->>'message' LIKE 'step % compensated'
        GROUP BY 1, 2, 3 HAVING count(*) > 1
    """,
    "what the ledger says of a step's undoing the history says too": """
        SELECT u.run_id, n.path, u.key, u.status, count(e.seq) FROM workflow_step AS u
        JOIN workflow_node AS n ON n.id = u.node_id
        LEFT JOIN workflow_runevent AS e ON e.run_id = u.run_id AND e.node = n.path
         AND u.key = coalesce(e.data->>'step', e.data->'fields'->>'step')
         AND (e.name = 'action.compensation_failed'
              OR (e.name = 'log' AND e.data->>'message' LIKE 'step % compensated'))
        WHERE u.phase = 'undo' GROUP BY 1, 2, 3, 4
        HAVING count(e.seq) <> (u.status IN ('completed', 'failed'))::int
    """,
    "once a run goes back nothing of it goes forward": """
        SELECT e.run_id, e.seq, e.name, e.node FROM workflow_runevent AS e
        JOIN workflow_runevent AS c ON c.run_id = e.run_id AND c.name = 'compensating' AND c.seq < e.seq
        WHERE e.name IN ('action.started', 'action.completed', 'stage.completed', 'completed', 'started')
    """,
    "once a run goes forward no more no body of a step is at work": """
        SELECT s.run_id, s.node_id, s.key FROM workflow_step AS s JOIN workflow_run AS r ON r.id = s.run_id
        WHERE s.status = 'running' AND s.phase = 'run' AND r.status NOT IN ('pending', 'running', 'waiting')
    """,
    "a settled step has its value, an unsettled one has none": """
        SELECT run_id, node_id, key, status FROM workflow_step
        WHERE (status = 'completed') <> (finished_at IS NOT NULL AND error IS NULL AND value IS NOT NULL)
          AND NOT (status = 'completed' AND value IS NULL)
    """,
}
"""Hold at any moment, in the eyes of one snapshot."""

AT_REST = {
    "nobody holds a lease": "SELECT run_id, kind, worker_id FROM workflow_job WHERE lease_token IS NOT NULL",
    "a run that is over has no job at all": """
        SELECT r.id, j.kind FROM workflow_run AS r JOIN workflow_job AS j ON j.run_id = r.id
        WHERE r.finished_at IS NOT NULL
    """,
    "a container with nothing left to do is over": """
        SELECT p.run_id, p.path, p.status FROM workflow_node AS p
        JOIN workflow_node AS n ON n.run_id = p.run_id AND n.path LIKE p.path || '.%'
        WHERE p.status IN ('pending', 'running', 'waiting')
        GROUP BY p.run_id, p.path, p.status
        HAVING bool_and(n.status NOT IN ('pending', 'running', 'waiting'))
    """,
    "no step is left in the middle": """
        SELECT s.run_id, s.key, s.status FROM workflow_step AS s JOIN workflow_node AS n ON n.id = s.node_id
        WHERE s.status <> 'completed' AND n.status = 'completed' AND s.phase = 'run'
          AND s.kind <> 'sleep'
    """,
    "nothing is open in a ledger whose handler is over for good": """
        SELECT s.run_id, n.path, s.phase, s.key, s.status FROM workflow_step AS s
        JOIN workflow_node AS n ON n.id = s.node_id JOIN workflow_run AS r ON r.id = s.run_id
        WHERE s.status IN ('running', 'waiting') AND s.kind <> 'sleep' AND s.phase <> 'undo'
          AND CASE s.phase
              WHEN 'run' THEN n.status IN ('completed', 'compensated')
                           OR r.status IN ('completed', 'compensating', 'compensated', 'cancelled')
              ELSE r.status <> 'compensating' OR n.status = 'compensated'
                OR n.error ->> 'code' = 'COMPENSATION_FAILED' END
    """,
    "in a run that is compensated every step that could be undone was, or is known not to be": """
        SELECT s.run_id, s.node_id, s.key, u.status FROM workflow_step AS s
        JOIN workflow_run AS r ON r.id = s.run_id AND r.status = 'compensated'
        LEFT JOIN workflow_step AS u
          ON u.run_id = s.run_id AND u.node_id = s.node_id AND u.key = s.key AND u.phase = 'undo'
        WHERE s.phase = 'run' AND s.status = 'completed' AND s.completed_seq IS NOT NULL
          AND coalesce(u.status, '') NOT IN ('completed', 'failed')
    """,
}
"""Hold once all work is done, or parked."""

CALLS = {
    "one undo at a time": """
        SELECT a.run_id, a.path, b.path, a.pid FROM crash_call AS a JOIN crash_call AS b
          ON a.run_id = b.run_id AND a.id <> b.id AND a.phase ~ '^un(do|step:)' AND b.phase ~ '^un(do|step:)'
         AND b.started_at > a.started_at AND b.started_at < a.ended_at
    """,
    "nothing is undone while something is still being done": """
        SELECT a.run_id, a.path, b.path, b.pid FROM crash_call AS a JOIN crash_call AS b
          ON a.run_id = b.run_id AND a.phase ~ '^un(do|step:)' AND b.phase = 'run' AND b.started_at < a.started_at
         AND b.ended_at > a.started_at
    """,
    "a step that is settled is not done again": """
        SELECT c.run_id, c.path, c.phase, c.pid FROM crash_call AS c
        JOIN workflow_node AS n ON n.run_id = c.run_id AND n.path = c.path
        JOIN workflow_step AS s ON s.node_id = n.id AND s.status = 'completed' AND s.phase <> 'undo'
                               AND c.phase = 'step:' || s.key
        WHERE c.started_at > s.finished_at
    """,
    "a step that is undone is not undone again": """
        SELECT c.run_id, c.path, c.phase, c.pid FROM crash_call AS c
        JOIN workflow_node AS n ON n.run_id = c.run_id AND n.path = c.path
        JOIN workflow_step AS s ON s.node_id = n.id AND s.status = 'completed' AND s.phase = 'undo'
                               AND c.phase = 'unstep:' || s.key
        WHERE c.started_at > s.finished_at
    """,
}
"""About what handlers wrote down; the last column is the pid of the one that went on for too long, if its lease was
gone. The second holds only where no handler outlives its lease: one that is cancelled may."""


UNDO_FAILED = "completed, not undone"


@dataclass
class _Walk:
    """What one action's history says of it."""

    status: str = states.PENDING
    attempt: int = 0
    starts: Counter[int] = field(default_factory=Counter)
    """How often user code may have been entered, by attempt."""


def check(
    *, at_rest: bool = True, exact: bool = False, zombies: bool = False, dead: Collection[int] = ()
) -> None:
    """Raises AssertionError with all that is wrong.

    `at_rest`: all work is done, or parked. `exact`: no worker was killed or stopped, so handlers were
    called exactly as often as history says. `zombies`: some handlers went on after their lease was gone;
    `dead` are the pids of workers where that may be so.
    """
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        found = list(_violations(at_rest, exact, zombies, dead))
    assert not found, "\n".join(found[:40])


def _violations(at_rest: bool, exact: bool, zombies: bool, dead: Collection[int]) -> Iterator[str]:
    rules = {**ALWAYS, **(AT_REST if at_rest else {}), **CALLS}
    for rule, sql in rules.items():
        if zombies and rule.startswith("nothing is undone while"):
            continue
        for row in _rows(sql):
            if rule not in CALLS or row[-1] not in dead:
                yield f"{rule}: {_shown(row)}"
    yield from _runs(at_rest, exact)


def _rows(sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def _shown(row: tuple[Any, ...]) -> str:
    return ", ".join(str(value) for value in row)


# --- run by run ---------------------------------------------------------------------------------


def _runs(at_rest: bool, exact: bool) -> Iterator[str]:
    from workflow.models import Node, Run, RunEvent

    nodes: dict[Any, dict[str, Node]] = defaultdict(dict)
    for node in Node.objects.all():
        nodes[node.run_id][node.path] = node
    history: dict[Any, list[RunEvent]] = defaultdict(list)
    for entry in RunEvent.objects.order_by("run_id", "seq"):
        history[entry.run_id].append(entry)
    calls: dict[Any, Counter[tuple[str, str, int]]] = defaultdict(Counter)
    for run_id, path, phase, attempt, number in _rows(
        "SELECT run_id, path, phase, attempt, count(*) FROM crash_call GROUP BY run_id, path, phase, attempt"
    ):
        calls[run_id][path, phase, attempt] = number
    effects: dict[Any, Counter[tuple[str, str]]] = defaultdict(Counter)
    for run_id, path, phase, number in _rows(
        "SELECT run_id, path, phase, count(*) FROM crash_effect GROUP BY run_id, path, phase"
    ):
        effects[run_id][path, phase] = number
    for run in Run.objects.all():
        tree = registry.get(run.workflow).tree
        where = f"run {run.id} of {run.workflow}, {run.status}"
        mine = nodes[run.id]
        walks = {path: _Walk() for path, node in mine.items() if node.kind == states.ACTION}
        faults = [
            *_run_path(run, mine, history[run.id]),
            *_action_paths(history[run.id], walks),
            *_outcomes(run, tree, mine, walks),
            *_barriers(tree, history[run.id]),
            *_called(run, walks, calls[run.id], exact),
            *_effects(tree, mine, effects[run.id]),
            *_state(run, tree, mine),
        ]
        if at_rest and run.status == states.COMPENSATED:
            faults += _all_undone(tree, mine)
        yield from (f"{where}: {text}" for text in faults)


def _run_path(run: Any, nodes: dict[str, Any], history: list[Any]) -> Iterator[str]:
    """The run's status, told by its history, goes along legal edges and ends where it is."""
    status = states.PENDING
    moves = {
        states.EVENT_STARTED: states.RUNNING,
        states.EVENT_RESUMED: states.RUNNING,
        states.EVENT_WAITING: states.WAITING,
        states.EVENT_COMPENSATING: states.COMPENSATING,
        **{name: name for name in states.RUN_TERMINAL},
    }
    undoing = any(entry.name == states.EVENT_COMPENSATING for entry in history)
    for entry in history:
        node = nodes.get(entry.node or "")
        target = moves.get(entry.name)
        if target is None or (node is not None and node.kind == states.ACTION):
            continue
        if entry.name == states.EVENT_CANCELLED and undoing:
            continue  # told that it goes back because somebody cancelled it
        if target != status and target not in states.RUN_EDGES[status]:
            yield f"entry {entry.seq} leads from {status} to {target}"
        status = target
    if status != run.status:
        yield f"history ends {status}"


def _action_paths(history: list[Any], walks: dict[str, _Walk]) -> Iterator[str]:
    for entry in history:
        data = entry.data or {}
        if entry.name == states.EVENT_RESUMED and data.get("retry"):
            for walk in walks.values():
                walk.status = "retried"
            continue
        walk = walks.get(entry.node or "")
        if walk is None or data.get("compensation") or "step" in data:
            continue
        yield from _action_step(entry, data, walk)


def _action_step(entry: Any, data: dict[str, Any], walk: _Walk) -> Iterator[str]:
    """One entry of an action's history: may it follow what came before?"""
    leaves, target = _ACTION_MOVES.get(entry.name, ((), ""))
    if not leaves:
        return
    if walk.status not in (*leaves, "retried"):
        yield f"entry {entry.seq} is {entry.name} of {entry.node}, which was {walk.status}"
    if entry.name == states.EVENT_ACTION_STARTED:
        begins_anew = walk.status == "retried" and data["attempt"] == 1
        if not begins_anew and data["attempt"] != walk.attempt + 1:
            yield f"entry {entry.seq} starts attempt {data['attempt']} of {entry.node} after {walk.attempt}"
        walk.attempt = data["attempt"]
    elif target in _FORWARD and data.get("attempt", walk.attempt) != walk.attempt:
        yield f"entry {entry.seq} is {entry.name} of attempt {data['attempt']} of {entry.node}, not {walk.attempt}"
    walk.status = target
    if target == states.RUNNING:
        walk.starts[walk.attempt] += 1
    if data.get("reason") == "shutdown":
        walk.attempt -= 1


_ACTION_MOVES: dict[str, tuple[tuple[str, ...], str]] = {
    states.EVENT_ACTION_STARTED: ((states.PENDING,), states.RUNNING),
    states.EVENT_ACTION_RETRYING: ((states.RUNNING,), states.PENDING),
    states.EVENT_ACTION_COMPLETED: ((states.RUNNING,), states.COMPLETED),
    states.EVENT_ACTION_FAILED: ((states.PENDING, states.RUNNING, states.WAITING), states.FAILED),
    states.EVENT_ACTION_SKIPPED: ((states.PENDING,), states.SKIPPED),
    states.EVENT_WAITING: ((states.RUNNING,), states.WAITING),
    states.EVENT_RESUMED: ((states.WAITING,), states.RUNNING),
    states.EVENT_ACTION_COMPENSATED: ((states.COMPLETED,), states.COMPENSATED),
    states.EVENT_ACTION_COMPENSATION_FAILED: ((states.COMPLETED,), UNDO_FAILED),
}


_FORWARD = (states.PENDING, states.COMPLETED, states.FAILED)
"""Targets of entries that name the attempt; those of a compensation count its own."""


def _outcomes(run: Any, tree: Tree, nodes: dict[str, Any], walks: dict[str, _Walk]) -> Iterator[str]:
    """A node is what its history says, and no attempt more than its definition allows."""
    for path, walk in walks.items():
        node, action = nodes[path], tree.by_path[path].definition
        assert isinstance(action, Action)
        silent = {states.CANCELLED, states.SKIPPED}  # they follow their ancestors, without an entry
        told = states.COMPLETED if walk.status == UNDO_FAILED else walk.status
        if told not in (node.status, "retried") and not (
            node.status in silent and walk.status in states.NODE_LIVE
        ):
            yield f"{path} is {node.status}, its history says {walk.status}"
        if walk.status != "retried" and node.attempt != walk.attempt:
            yield f"{path} has had {node.attempt} attempts, its history says {walk.attempt}"
        if node.attempt > action.attempts:
            yield f"{path} has had {node.attempt} attempts of {action.attempts}"
        if node.compensate_attempt > action.compensate_attempts:
            yield f"{path} has had {node.compensate_attempt} compensations of {action.compensate_attempts}"


def _barriers(tree: Tree, history: list[Any]) -> Iterator[str]:
    """Nothing of a group begins before all of the group before it is over."""
    if any((entry.data or {}).get("retry") for entry in history if entry.data):
        return
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    ends = (states.EVENT_ACTION_COMPLETED, states.EVENT_STAGE_COMPLETED, states.EVENT_ACTION_SKIPPED)
    begins = (states.EVENT_ACTION_STARTED, states.EVENT_WAITING)
    for entry in history:
        node = tree.by_path.get(entry.node or "")
        while node is not None and node.ordinal:
            if entry.name in begins:
                first.setdefault(node.ordinal, entry.seq)
            if entry.name in ends:
                last[node.ordinal] = entry.seq
            node = tree.nodes[node.parent]
    for node in tree.nodes:
        for earlier, later in zip(node.groups, node.groups[1:], strict=False):
            over = max((last.get(member, 0) for member in earlier), default=0)
            for member in later:
                if member in first and first[member] < over:
                    path = tree.nodes[member].path
                    yield f"{path} began at {first[member]}, the group before it was over at {over}"


def _called(
    run: Any, walks: dict[str, _Walk], calls: Counter[tuple[str, str, int]], exact: bool
) -> Iterator[str]:
    """No handler is called more often than history says that it was started."""
    for (path, phase, attempt), number in calls.items():
        if phase == "run" and number > walks[path].starts[attempt]:
            yield f"{path} was called {number} times in attempt {attempt}, started {walks[path].starts[attempt]} times"
    if not exact:
        return
    for path, walk in walks.items():
        for attempt, number in walk.starts.items():
            if calls[path, "run", attempt] != number:
                called = calls[path, "run", attempt]
                yield f"{path} was called {called} times in attempt {attempt}, started {number} times"


def _effects(tree: Tree, nodes: dict[str, Any], effects: Counter[tuple[str, str]]) -> Iterator[str]:
    """What an atomic action wrote is there exactly once, if and only if the action is done."""
    for path, node in nodes.items():
        action = tree.by_path[path].definition
        if not isinstance(action, Action) or not action.atomic:
            continue
        done = int(node.status in (states.COMPLETED, states.COMPENSATED))
        undone = int(node.status == states.COMPENSATED)
        if (effects[path, "run"], effects[path, "undo"]) != (done, undone):
            yield f"{path} is {node.status}, its effects are {effects[path, 'run']}, {effects[path, 'undo']}"


def _state(run: Any, tree: Tree, nodes: dict[str, Any]) -> Iterator[str]:
    """The state is the input and the outputs, merged in the order of completion."""
    state = dict(seed(run.input))
    done = [n for n in nodes.values() if n.completed_seq is not None and n.output is not None]
    for node in sorted(done, key=lambda n: n.completed_seq):
        if node.status in (states.COMPLETED, states.COMPENSATED):
            state.update(nest(tree.by_path[node.path].key, node.output) or {})
    if state != run.state:
        yield f"the state is {run.state}, the outputs say {state}"


def _all_undone(tree: Tree, nodes: dict[str, Any]) -> Iterator[str]:
    for path, node in nodes.items():
        action = tree.by_path[path].definition
        undoable = isinstance(action, Action) and action.compensate_handler is not None
        noted = (node.error or {}).get("code") == FailureCode.COMPENSATION_FAILED
        if undoable and node.status == states.COMPLETED and not noted:
            yield f"{path} was not undone"
