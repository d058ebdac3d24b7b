"""Rows that are worked on together, and apart where the database refuses one of them: no row keeps the others.

A refusal is an error that is about the rows themselves: a trigger of the project's that raises, a check
that one does not pass. What another session has locked is no refusal, and neither is a database that is away.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from workflow.failures import clean_text
from workflow.store.pipeline import Rows, Statement
from workflow.store.ports import Port
from workflow.store.trouble import blames_statement

logger = logging.getLogger("workflow")

MOST_NAMED: Final = 1000
"""Refused rows that a process remembers to have named: each is found again on every pass."""
MOST_TRACED: Final = 20
"""Of those, so many come with a traceback: what is refused for every row of a table would fill the log."""
_named: set[tuple[str, str]] = set()


async def apart(rows: Rows, work: Callable[[Rows], Awaitable[None]], what: str) -> dict[str, str]:
    """Does the work on the rows in halves, quarters and so on, down to single ones wherever it is refused.

    Returns why, by the first column of each row that is refused alone; the log names such a row once. `what`
    is done to the rows, for the log. Anything but a refusal is raised.
    """
    refused: dict[str, str] = {}
    left = [rows] if rows else []
    while left:
        part = left.pop()
        try:
            await work(part)
        except Exception as error:
            if not blames_statement(error):
                raise
            if len(part) > 1:
                half = len(part) // 2
                left += [part[half:], part[:half]]
                continue
            row_id = str(part[0][0])
            refused[row_id] = f"{type(error).__name__}: {clean_text(error, 500)}"
            name_once(what, row_id, error)
    return refused


async def a_page(
    port: Port, page: Statement, find: Statement, these: Callable[[Rows], Statement], what: str
) -> Rows:
    """The rows of the statement `page`. When that is refused: those that `find` gives, each replaced by what the
    statement `these` answers for it, or left as it was found.
    """
    try:
        return (await port.run([page]))[0]
    except Exception as error:
        if not blames_statement(error):
            raise
    found = (await port.run([find]))[0]
    answers: Rows = []

    async def work(part: Rows) -> None:
        answers.extend((await port.run([these(part)]))[0])

    await apart(found, work, what)
    answered = {row[0]: row for row in answers}
    return [answered.get(row[0], row) for row in found]


def name_once(what: str, row_id: str, error: BaseException) -> None:
    """Says in the log that the database refused this for the row: once, however often it is tried again."""
    if (what, row_id) in _named:
        return
    if len(_named) >= MOST_NAMED:
        _named.clear()
    _named.add((what, row_id))
    trace = error if len(_named) <= MOST_TRACED else None
    logger.error("the database refuses to %s %s (%s); all others go on", what, row_id, error, exc_info=trace)
