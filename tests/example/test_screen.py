"""How the demo tells of itself: where there is little room, and where nobody redraws."""

from __future__ import annotations

import io
from collections import Counter

from rich.console import Console

from example_project.shop.books import Check
from example_project.shop.demo import Sight
from example_project.shop.screen import PlainScreen, print_checks


def console(width: int) -> Console:
    return Console(file=io.StringIO(), width=width, highlight=False)


def printed(on: Console) -> list[str]:
    assert isinstance(on.file, io.StringIO)
    return on.file.getvalue().splitlines()


def test_a_long_check_goes_on_below_its_own_text() -> None:
    narrow = console(30)
    print_checks(narrow, [Check("nothing was charged twice (53 webhooks repeated)", [])])
    assert printed(narrow) == [
        "  ok    nothing was charged",
        "        twice (53 webhooks",
        "        repeated)",
    ]


def test_in_a_pipe_each_look_is_a_line_only_if_something_has_changed() -> None:
    pipe = console(140)
    screen = PlainScreen(pipe)
    going = Counter({("plain", "running"): 2, ("never-pays", "waiting"): 1})
    over = Counter({("plain", "completed"): 2, ("plain", "running"): 0, ("never-pays", "waiting"): 1})
    for seconds, statuses in [
        (2.0, going),
        (4.0, going),
        (6.0, over),
        (7.0, going),
        (8.0, over),
        (8.5, going),
    ]:
        screen.show(Sight(seconds, statuses, {}))
    assert printed(pipe) == [
        "   2.0 s  2 running, 1 waiting",
        "   6.0 s  1 waiting, 2 completed; the payments that are waited for never come",
        "   8.5 s  2 running, 1 waiting",
    ]
