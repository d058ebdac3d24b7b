"""What a handler logs is kept within the limits of all that a run keeps."""

from __future__ import annotations

from typing import Any

from tests.support.runs import names, run_through, staged
from workflow import Action


def test_fields_that_are_larger_than_a_payload_may_be_are_refused(settings: Any) -> None:
    settings.WORKFLOW = {**settings.WORKFLOW, "MAX_PAYLOAD_BYTES": 1_000}

    def tell(state: dict[str, Any], ctx: Any) -> None:
        ctx.log("small", rows=["x" * 100] * 5)
        ctx.log("large", rows=["x" * 100] * 10)

    status = run_through(staged(Action("tell", tell)))
    assert status.run.error is not None
    assert status.run.error["code"] == "PAYLOAD_INVALID"
    assert "ctx.log: 1" in status.run.error["message"]
    assert names(status).count("log") == 1
