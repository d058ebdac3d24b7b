"""From stored values to what a page shows. Text from runs is hostile: escaped, and without what hides or reorders.

Everything that comes here has been masked already.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from workflow import terminal

MOST: Final = 200_000
"""Characters of one value that a page shows."""
_CUT: Final = "[... {:,} more characters; the JSON API has all of it]"


def text(value: object, limit: int = 300) -> str:
    """On one line, plain; "-" for None."""
    return "-" if value is None else terminal.one_line(value, limit)


def inline(value: Any, limit: int = 500) -> str:
    """A JSON value on one line; nothing for None."""
    return "" if value is None else text(json.dumps(value, ensure_ascii=False, default=str), limit)


def document(value: Any) -> SafeString | str:
    """A JSON value, indented; "-" for None."""
    return "-" if value is None else _block(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def lines(value: str) -> SafeString | str:
    """A text of several lines, such as a traceback."""
    return _block(value) if value else "-"


def error(value: Any) -> SafeString | str:
    """A run's or node's error without its traceback."""
    if not isinstance(value, dict):
        return document(value)
    return document({key: part for key, part in value.items() if key != "traceback"})


def traceback(value: Any) -> SafeString | str:
    """The traceback of an error."""
    return lines(str(value.get("traceback") or "")) if isinstance(value, dict) else "-"


def _block(whole: str) -> SafeString:
    shown = whole[:MOST]
    if len(whole) > MOST:
        shown += "\n" + _CUT.format(len(whole) - MOST)
    # Line by line: a line break is the one control character that does what it should here.
    printable = "\n".join(terminal.printable(line) for line in shown.split("\n"))
    return format_html('<pre class="wf-text">{}</pre>', printable)


def status(value: str) -> SafeString:
    """A status with its colour; the word is there for those who see none."""
    return format_html('<span class="wf-status wf-{}">{}</span>', value, value)


def took(started: datetime | None, finished: datetime | None) -> str:
    """How long it took, or has taken until now; "-" for what never started."""
    if started is None:
        return "-"
    end = finished or timezone.now()
    if timezone.is_aware(started) != timezone.is_aware(end):
        end = timezone.make_naive(end)
    return terminal.duration((end - started).total_seconds())


def change_link(model: str, pk: object, label: str | None = None) -> SafeString | str:
    """To the page of a row of one of our models; "-" for none."""
    if pk is None:
        return "-"
    shown = label if label is not None else str(pk)
    try:
        address = reverse(f"admin:workflow_{model}_change", args=[pk])
    except NoReverseMatch:  # an admin site that left this model out
        return shown
    return format_html('<a href="{}">{}</a>', address, shown)


def live_page(run_id: object) -> str | None:
    """The run's page in the dashboard, if the project has one."""
    try:
        return reverse("workflow_dashboard:run", args=[run_id])
    except NoReverseMatch:
        return None
