"""From what went wrong to an answer: a status, a stable code, and a message that gives no secret away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from workflow import errors
from workflow.errors import InputInvalid, WorkflowError, validation_errors, validation_summary
from workflow.failures import clean_text
from workflow.redact import redact_text, secrets_of

MALFORMED: Final = "MALFORMED_JSON"
UNREADABLE: Final = "REQUEST_UNREADABLE"
TOO_LARGE: Final = "REQUEST_TOO_LARGE"
UNAUTHENTICATED: Final = "UNAUTHENTICATED"
FORBIDDEN: Final = "FORBIDDEN"
CSRF_FAILED: Final = "CSRF_FAILED"
METHOD_NOT_ALLOWED: Final = "METHOD_NOT_ALLOWED"
INVALID: Final = "REQUEST_INVALID"

MOST_DETAILS: Final = 100
"""A body with a million unknown fields gets no longer answer than one with a hundred."""

CODES: Final[Mapping[str, int]] = {
    MALFORMED: 400,
    UNREADABLE: 400,
    TOO_LARGE: 400,
    UNAUTHENTICATED: 401,
    FORBIDDEN: 403,
    CSRF_FAILED: 403,
    errors.RunNotFound.code: 404,
    errors.WorkflowUnknown.code: 404,
    errors.NodeUnknown.code: 404,
    METHOD_NOT_ALLOWED: 405,
    errors.RunConflict.code: 409,
    errors.VersionConflict.code: 409,
    INVALID: 422,
    errors.InputInvalid.code: 422,
    errors.PayloadInvalid.code: 422,
}
"""Every code that an answer can have, with its status."""


class Refused(Exception):
    """A request that is not done; the view makes the answer of it."""

    def __init__(
        self,
        code: str,
        message: str,
        details: Sequence[dict[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = CODES[code]
        self.message = message
        self.details = list(details)
        self.headers = dict(headers or {})


def invalid(error: ValidationError, given: object) -> Refused:
    """A query string or a body that its model does not accept; ``given`` is what it was, for the masking."""
    return _masked(INVALID, validation_summary(error), validation_errors(error), given)


def wrong(message: str) -> Refused:
    """A request that is wrong as a whole, in one sentence."""
    return Refused(INVALID, message, [{"type": "value_error", "loc": [], "msg": message}])


def of(error: WorkflowError, given: object) -> Refused:
    """What the manager refused. An error that callers can do nothing about is raised again."""
    if error.code not in CODES:
        raise error
    details = error.errors() if isinstance(error, InputInvalid) else []
    inside = [{**entry, "loc": ("input", *entry.get("loc", ()))} for entry in details]
    return _masked(error.code, str(error), inside, given)


def _masked(code: str, message: str, details: Sequence[dict[str, Any]], given: object) -> Refused:
    """Messages of a user's own validators may repeat what they were given, and places are what it named them."""
    secrets = secrets_of(given)
    shown = [
        {
            "type": str(entry.get("type", "")),
            "loc": [_place(part) for part in entry.get("loc", ())],
            "msg": _text(str(entry.get("msg", "")), secrets),
        }
        for entry in details[:MOST_DETAILS]
    ]
    return Refused(code, _text(message, secrets), shown)


def _text(text: str, secrets: Iterable[str]) -> str:
    return clean_text(redact_text(text, secrets=secrets), 2_000)


def _place(part: object) -> str | int:
    return part if isinstance(part, int) else clean_text(str(part), 200)
