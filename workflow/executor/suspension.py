"""How a durable step leaves its handler."""

from __future__ import annotations

from workflow.plan import StepWrite


class Suspend(BaseException):
    """Raised through a handler by a step that has to wait `delay` seconds; `steps` are written as it parks.

    Not an Exception, so that no `except Exception` of the handler swallows it.
    """

    def __init__(self, delay: float, steps: list[StepWrite]) -> None:
        super().__init__(delay)
        self.delay = delay
        self.steps = steps
