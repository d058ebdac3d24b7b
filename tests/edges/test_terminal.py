"""What people see of runs: readable on a terminal and in a pipe, whatever text a run holds."""

from __future__ import annotations

import io
import itertools
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management.base import OutputWrapper
from django.utils import timezone
from rich.console import Console

from workflow import failures, states, terminal
from workflow.management.output import Output

NOW = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)
HOSTILE = "\x1b]0;owned\x07\x1b[31m[bold red]x[/] \x00\r\n\u202egnp.\u2028\x9b2J\ud800 :smile: \u200bend"

NO_FUNDS = {"code": "ACTION_FAILED", "message": "no funds"}


@dataclass
class SomeRun:
    id: Any = "0199c0de-0000-7000-8000-000000000000"
    workflow: str = "order"
    version: int = 1
    status: str = states.COMPLETED
    state: Any = field(default_factory=dict)
    input: Any = None
    error: Any = None
    correlation_id: str | None = None
    created_at: datetime = NOW - timedelta(seconds=10)
    started_at: datetime | None = NOW - timedelta(seconds=8)
    finished_at: datetime | None = NOW - timedelta(seconds=5)


@dataclass
class SomeNode:
    path: str
    kind: str
    parent: str | None
    status: str = states.COMPLETED
    attempt: int = 0
    progress: float | None = None
    output: Any = None
    error: Any = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


@dataclass
class SomeStatus:
    run: SomeRun
    nodes: list[SomeNode]


def tree(*actions: SomeNode, run: SomeRun | None = None) -> SomeStatus:
    """One pipeline `order`, one stage `pay`, and these actions."""
    top = [SomeNode("order", states.PIPELINE, None), SomeNode("order.pay", states.STAGE, "order")]
    return SomeStatus(run or SomeRun(), [*top, *actions])


def an_action(name: str, **values: Any) -> SomeNode:
    return SomeNode(f"order.pay.{name}", states.ACTION, "order.pay", **values)


def in_colours(view: Any, width: int = 120, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    Console(file=stream, force_terminal=True, width=width, color_system="truecolor").print(view)
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.fixture(autouse=True)
def _in_utc():
    with timezone.override(UTC):
        yield


# Text


def test_controls_and_reordering_characters_become_escapes():
    text = terminal.printable(HOSTILE)
    assert text == (
        "\\x1b]0;owned\\x07\\x1b[31m[bold red]x[/] \\x00\\x0d\\x0a"
        "\\u202egnp.\\u2028\\x9b2J\\ud800 :smile: \\u200bend"
    )


def test_letters_of_all_scripts_and_emoji_stay():
    text = "Grüße, 价格, سلام, नमस्ते, 👩\u200d🚀, می\u200cخواهم \u00a0 €"  # noqa: RUF001
    assert terminal.printable(text) == text


def test_every_character_is_either_kept_or_escaped_in_ascii():
    for code in [*range(0x3000), *range(0xD7F0, 0xE010), *range(0xFE00, 0x10000), *range(0xE0000, 0xE0080)]:
        shown = terminal.printable(chr(code))
        assert shown == chr(code) or shown.isascii()
        if not chr(code).isprintable() and shown == chr(code):
            # Not assigned, private, joiners and odd spaces: they do nothing to a terminal.
            assert chr(code) not in "\u202e\u2066\u2028\ufeff"
            assert code > 0x9F


def test_one_line_is_one_line_and_short():
    assert terminal.one_line("a\n  b\r\n\tc") == "a b c"
    assert terminal.one_line("x" * 10_000_000, 50) == "x" * 47 + "..."
    assert len(terminal.one_line("\x00" * 100, 50)) == 50
    assert "\n" not in terminal.one_line(HOSTILE)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0s"), (-3, "0.0s"), (0.1234, "0.12s"), (0.05, "0.05s"), (3.44, "3.4s"), (9.99, "10.0s"),
        (42.4, "42s"), (59.6, "1m 00s"), (125, "2m 05s"),
        (3599.9, "1h 00m"), (5400, "1h 30m"), (273_600, "3d 04h"),
    ],
)  # fmt: skip
def test_durations(seconds, text):
    assert terminal.duration(seconds) == text


@pytest.mark.parametrize(
    ("percent", "text"),
    [
        (0, "[--------------------]   0%"),
        (50, "[##########----------]  50%"),
        (100, "[####################] 100%"),
        (-5, "[--------------------]   0%"),
        (250, "[####################] 100%"),
    ],
)
def test_bars(percent, text):
    assert terminal.bar(percent) == text


def test_errors_are_code_and_message_on_one_line():
    assert terminal.error_line({"code": "ACTION_FAILED", "message": "no\nfunds"}) == "ACTION_FAILED: no funds"
    assert terminal.error_line({"code": "WAIT_TIMEOUT", "message": ""}) == "WAIT_TIMEOUT"
    assert terminal.error_line({}) == "ERROR"


def test_a_key_error_is_called_one():
    """Its message alone would be ``'sku'``, from which nobody learns that the state has no such key."""
    error = failures.describe(KeyError("sku"), "ACTION_FAILED", "order.pay.charge")
    assert error["message"] == "'sku'"
    assert terminal.error_line(error) == "ACTION_FAILED: KeyError: 'sku'"
    nameless = failures.describe(KeyError(), "ACTION_FAILED", "order.pay.charge")
    assert terminal.error_line(nameless) == "ACTION_FAILED: KeyError"


def test_what_is_no_error_is_shown_as_it_is():
    assert terminal.error_line(None) == ""
    assert terminal.error_line("just text\x00") == "just text\\x00"


# One run


def test_a_run_in_plain_lines():
    status = tree(
        an_action("reserve", attempt=1, started_at=NOW, finished_at=NOW + timedelta(seconds=0.5)),
        an_action("charge", status=states.FAILED, attempt=3, error=NO_FUNDS),
        an_action("notify", status=states.PENDING),
        run=SomeRun(
            status=states.FAILED, correlation_id="o-17", error={**NO_FUNDS, "node": "order.pay.charge"}
        ),
    )
    assert terminal.run_lines(status, NOW) == [
        "run          0199c0de-0000-7000-8000-000000000000",
        "workflow     order v1",
        "status       failed",
        "correlation  o-17",
        "created      2026-03-04 11:59:50",
        "started      2026-03-04 11:59:52",
        "finished     2026-03-04 11:59:55 (took 3.0s)",
        "error        ACTION_FAILED: no funds (in order.pay.charge)",
        "",
        "order        completed",
        "  pay        completed",
        "    reserve  completed    0.5s",
        "    charge   failed       attempt 3  ACTION_FAILED: no funds",
        "    notify   pending",
    ]


def test_a_running_action_shows_attempt_time_and_progress():
    node = an_action(
        "charge", status=states.RUNNING, attempt=1, progress=25.0, started_at=NOW - timedelta(seconds=90)
    )
    assert terminal.node_notes(node, NOW) == ["1m 30s", "attempt 1", "[#####---------------]  25%"]
    node.status = states.COMPLETED
    assert "[" not in "".join(terminal.node_notes(node, NOW)), "a finished action's bar would only distract"


def test_an_error_is_told_where_it_happened_and_not_again_above_it():
    error = {**NO_FUNDS, "node": "order.pay.charge"}
    status = tree(an_action("charge", status=states.FAILED, error=error))
    for node in status.nodes:
        node.error = error
    for text in ("\n".join(terminal.run_lines(status, NOW)), in_colours(terminal.run_view(status, NOW))):
        assert text.count("no funds") == 1
    [*above, told] = terminal.changes(None, status, NOW)[:3]
    assert "no funds" in told
    assert "no funds" not in "".join(above)
    status.nodes[1].error = {"code": "WAIT_TIMEOUT", "message": "nobody paid", "node": "order.pay"}
    assert "nobody paid" in "\n".join(terminal.run_lines(status, NOW))


def test_detail_adds_input_state_outputs_and_tracebacks():
    status = tree(
        an_action(
            "charge", output={"payment": "p-1"}, error={"code": "X", "traceback": "File 1\n  line\x1b[2J"}
        ),
        run=SomeRun(input={"order": "o-1"}, state={"order": "o-1", "payment": "p-1"}),
    )
    text = "\n".join(terminal.run_lines(status, NOW, detail=True))
    assert 'input:\n  {\n    "order": "o-1"\n  }' in text
    assert 'output of order.pay.charge:\n  {\n    "payment": "p-1"\n  }' in text
    assert "traceback of order.pay.charge:\n  File 1\n    line\\x1b[2J" in text


def test_a_traceback_is_shown_once_at_the_node_where_it_happened():
    refused = {"code": "ACTION_FAILED", "node": "order.pay.charge", "traceback": "File 1\nno funds"}
    stuck = {"code": "COMPENSATION_FAILED", "node": "order.pay.reserve", "traceback": "File 1\nno funds"}
    status = tree(
        an_action("charge", error=refused),
        an_action("reserve", error=stuck),
        run=SomeRun(status=states.FAILED, error=refused),
    )
    for node in status.nodes[:2]:  # the pipeline and the stage failed because the action did
        node.error = refused
    text = "\n".join(terminal.run_lines(status, NOW, detail=True))
    assert text.count("traceback of order.pay.charge:\n  File 1\n  no funds") == 1
    assert text.count("traceback of order.pay.reserve:\n  File 1\n  no funds") == 1
    assert text.count("traceback of") == 2


def test_a_traceback_of_the_run_alone_is_shown_as_the_runs():
    error = {"code": "WORKFLOW_UNKNOWN", "node": None, "traceback": "File 1"}
    text = "\n".join(terminal.run_lines(tree(run=SomeRun(error=error)), NOW, detail=True))
    assert text.endswith("traceback of the run:\n  File 1")


def test_a_run_in_colours_shows_the_same_facts():
    status = tree(
        an_action("charge", status=states.RUNNING, attempt=2, progress=50.0),
        an_action("reserve", error={"code": "COMPENSATION_FAILED", "message": "gone"}),
        run=SomeRun(status=states.RUNNING, finished_at=None),
    )
    shown = in_colours(terminal.run_view(status, NOW))
    assert "\x1b[" in shown
    plain = without_colours(shown)
    assert "charge  running  attempt 2  [##########----------]  50%" in plain
    assert "COMPENSATION_FAILED: gone" in plain
    assert "1 of 2" in plain
    assert plain.index("order  completed") < plain.index("pay  completed") < plain.index("charge  running")


def hostile_status() -> SomeStatus:
    error = {"code": HOSTILE, "message": HOSTILE, "node": HOSTILE, "type": HOSTILE, "traceback": HOSTILE}
    return tree(
        an_action(HOSTILE, status=HOSTILE, error=error, output={HOSTILE: HOSTILE}, attempt=2),
        run=SomeRun(
            id=HOSTILE, workflow=HOSTILE, status=HOSTILE, correlation_id=HOSTILE, error=error,
            input={HOSTILE: HOSTILE}, state=HOSTILE,
        ),
    )  # fmt: skip


def only_harmless(text: str) -> bool:
    return all(character == "\n" or terminal.printable(character) == character for character in text)


def test_hostile_text_steers_nothing_in_plain_lines():
    status = hostile_status()
    for lines in (
        terminal.run_lines(status, NOW, detail=True),
        terminal.runs_lines([status.run], NOW),
        terminal.changes(None, status, NOW),
    ):
        text = "\n".join(lines)
        assert only_harmless(text)
        assert "owned" in text
        assert text.count("\n") == len(lines) - 1, "no text breaks a line"


def test_hostile_text_is_no_markup_and_steers_nothing_in_colours():
    status = hostile_status()
    for view in (terminal.run_view(status, NOW), terminal.runs_view([status.run], NOW)):
        plain = without_colours(in_colours(view, width=2000))
        assert only_harmless(plain), "nothing but rich's own colours was in there"
        assert "[bold red]x[/]" in plain
        assert ":smile:" in plain


def test_a_tree_too_tall_for_the_screen_folds_what_went_well():
    done = [SomeNode(f"order.s{i}", states.STAGE, "order") for i in range(20)]
    actions = [SomeNode(f"order.s{i}.a", states.ACTION, f"order.s{i}") for i in range(20)]
    top = [SomeNode("order", states.PIPELINE, None, status=states.RUNNING)]
    bad = [
        SomeNode("order.bad", states.STAGE, "order", status=states.FAILED),
        SomeNode("order.bad.x", states.ACTION, "order.bad", status=states.FAILED),
    ]
    nodes = top + [node for pair in zip(done, actions, strict=True) for node in pair] + bad
    status = SomeStatus(SomeRun(status=states.RUNNING), nodes)
    folded = without_colours(in_colours(terminal.run_view(status, NOW, rows=30)))
    assert "s7  completed  (+1)" in folded
    assert "x  failed" in folded
    assert " a  completed" not in folded
    whole = without_colours(in_colours(terminal.run_view(status, NOW, rows=60)))
    assert whole.count(" a  completed") == 20


@pytest.mark.parametrize("status", states.NODE_STATUSES)
def test_a_node_has_the_symbol_of_its_status(status: str):
    shown = without_colours(in_colours(terminal.run_view(tree(an_action("charge", status=status)), NOW)))
    assert f"{terminal.SYMBOLS[status]} charge  {status}" in shown


def test_what_was_cancelled_does_not_look_as_what_failed():
    alike = {states.COMPENSATING, states.COMPENSATED}  # the same at work and done
    assert set(terminal.SYMBOLS) == {*states.RUN_STATUSES, *states.NODE_STATUSES}
    others = [symbol for status, symbol in terminal.SYMBOLS.items() if status not in alike]
    assert len(set(others)) == len(others)


def test_an_ascii_terminal_gets_ascii():
    status = tree(an_action("charge", status=states.RUNNING, progress=10.0))
    assert in_colours(terminal.run_view(status, NOW, ascii_only=True), encoding="ascii").isascii()


def test_a_large_tree_is_drawn_in_reasonable_time():
    stages = [SomeNode(f"order.s{i}", states.STAGE, "order") for i in range(5000)]
    status = SomeStatus(SomeRun(), [SomeNode("order", states.PIPELINE, None), *stages])
    assert len(terminal.run_lines(status, NOW)) > 5000
    assert "s4999" in in_colours(terminal.run_view(status, NOW))


# Many runs


def test_runs_in_plain_lines_have_aligned_columns():
    runs = [
        SomeRun(id="a1", correlation_id="o-1"),
        SomeRun(id="a2", status=states.FAILED, workflow="refund", error=NO_FUNDS),
        SomeRun(id="a3", status=states.PENDING, started_at=None, finished_at=None),
    ]
    assert terminal.runs_lines(runs, NOW) == [
        "RUN  WORKFLOW   STATUS     CREATED              TOOK  CORRELATION  ERROR",
        "a1   order v1   completed  2026-03-04 11:59:50  3.0s  o-1          -",
        "a2   refund v1  failed     2026-03-04 11:59:50  3.0s  -            ACTION_FAILED",
        "a3   order v1   pending    2026-03-04 11:59:50  -     -            -",
    ]


def test_a_table_keeps_what_counts_on_a_narrow_terminal():
    runs = [
        SomeRun(correlation_id="c" * 80, workflow="w" * 80),
        SomeRun(status=states.COMPENSATED, error={"code": "LEASE_HEARTBEAT_LOST"}),
    ]
    shown = without_colours(in_colours(terminal.runs_view(runs, NOW), width=80))
    assert all(len(line) <= 80 for line in shown.splitlines())
    for whole in (SomeRun().id, "compensated", "completed", "10s", "3.0s"):
        assert f"{whole} " in shown


def test_a_table_has_no_empty_columns_and_survives_having_no_rows():
    assert "CORRELATION" not in in_colours(terminal.runs_view([SomeRun()], NOW))
    assert "CORRELATION" in in_colours(terminal.runs_view([SomeRun(correlation_id="c")], NOW))
    assert in_colours(terminal.runs_view([], NOW)).strip() == ""


# Changes


def test_changes_are_told_once():
    first = tree(
        an_action("charge", status=states.PENDING), run=SomeRun(status=states.RUNNING, finished_at=None)
    )
    assert terminal.changes(None, first, NOW) == [
        "12:00:00  order  completed",
        "12:00:00  order.pay  completed",
        "12:00:00  run 0199c0de-0000-7000-8000-000000000000  running",
    ]
    assert terminal.changes(first, first, NOW) == []
    second = tree(an_action("charge", status=states.RUNNING, attempt=2), run=first.run)
    assert terminal.changes(first, second, NOW) == ["12:00:00  order.pay.charge  running  attempt 2"]


def test_an_error_is_told_once_and_not_with_each_step_of_the_next_attempt():
    lost = {"code": "LEASE_HEARTBEAT_LOST", "message": "lease-lost"}
    run = SomeRun(status=states.RUNNING, finished_at=None)
    live = {"run": run}
    looks = [
        tree(an_action("charge", status=states.RUNNING, attempt=1), **live),
        tree(an_action("charge", status=states.PENDING, attempt=1, error=lost), **live),
        tree(an_action("charge", status=states.RUNNING, attempt=2, error=lost), **live),
        tree(an_action("charge", status=states.RUNNING, attempt=2, progress=10, error=lost), **live),
        tree(an_action("charge", status=states.RUNNING, attempt=2, progress=20, error=lost), **live),
        tree(an_action("charge", status=states.FAILED, attempt=2, error=lost), **live),
    ]
    told = [terminal.changes(before, after, NOW) for before, after in itertools.pairwise(looks)]
    assert [len(lines) for lines in told] == [1] * 5
    assert ["lease-lost" in lines[0] for lines in told] == [True, False, False, False, True]
    (line,) = [line for line in terminal.changes(None, looks[3], NOW) if "charge" in line]
    assert "lease-lost" in line, "whoever begins to watch is told of it"


# Output


class Pipe(io.StringIO):
    encoding = "ascii"


def test_characters_that_the_stream_lacks_are_escaped_and_no_line_is_added():
    pipe = Pipe()
    output = Output(OutputWrapper(pipe))
    output.line("Grüße €")
    output.lines(["a", "ü"])
    output.json({"ü": "\x9b\u202e"}, indent=None)
    assert pipe.getvalue() == 'Gr\\xfc\\xdfe \\u20ac\na\n\\xfc\n{"\\u00fc": "\\u009b\\u202e"}\n'


def test_a_pipe_gets_lines_and_force_color_gets_the_view():
    pipe = io.StringIO()
    Output(OutputWrapper(pipe)).show(lambda: "view", lambda: ["lines"])
    assert pipe.getvalue() == "lines\n"
    forced = io.StringIO()
    Output(OutputWrapper(forced), force_color=True).show(lambda: "view", lambda: ["lines"])
    assert forced.getvalue() == "view\n"


def test_no_color_on_a_terminal_means_no_colours(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")

    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    colours, none = Tty(), Tty()
    view = terminal.run_view(tree(), NOW)
    Output(OutputWrapper(colours)).show(lambda: view, list)
    Output(OutputWrapper(none), no_color=True).show(lambda: view, list)
    assert "\x1b[" in colours.getvalue()
    assert "\x1b[3" not in none.getvalue()
    assert "order" in none.getvalue()
