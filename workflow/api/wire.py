"""The wire: from a request's bytes to models, and from models to an answer's bytes."""

from __future__ import annotations

import json
from typing import Any, NoReturn, TypeVar

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.http import HttpRequest, HttpResponse
from django.http.request import RawPostDataException, UnreadablePostError
from pydantic import BaseModel, ValidationError

from workflow.api import refusals
from workflow.api.refusals import Refused
from workflow.api.schemas import Error, ErrorBody, ErrorDetail
from workflow.conf import conf
from workflow.times import zoned

Model = TypeVar("Model", bound=BaseModel)


def read(request: HttpRequest) -> bytes:
    """The body. Whoever looks at ``request.POST`` later (Django's CSRF check) finds it read already."""
    try:
        return request.body
    except RequestDataTooBig as error:
        message = "the body is larger than DATA_UPLOAD_MAX_MEMORY_SIZE allows"
        raise Refused(refusals.TOO_LARGE, message) from error
    except (UnreadablePostError, RawPostDataException, ValueError) as error:  # of a length that is no number
        raise Refused(refusals.UNREADABLE, "the body could not be read") from error


def body(request: HttpRequest) -> Any:
    """The body as JSON. A form without a field, as Django's test client sends by itself, is no body."""
    text = read(request)
    return {} if _is_empty_form(request, text) else parse(text)


def _is_empty_form(request: HttpRequest, text: bytes) -> bool:
    boundary = (request.content_params or {}).get("boundary", "")
    return request.content_type == "multipart/form-data" and text.strip() == f"--{boundary}--".encode()


def parse(text: bytes) -> Any:
    """JSON, and nothing but JSON. No body at all stands for an empty object."""
    if not text.strip():
        return {}
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise Refused(refusals.MALFORMED, "the body is nested too deep") from None
    except ValueError as error:  # of UTF-8 as well, and of numbers with thousands of digits
        raise Refused(refusals.MALFORMED, f"the body is not valid JSON: {error}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def query(request: HttpRequest, model: type[Model]) -> Model:
    """The query string. A parameter that is given twice is refused, since only one of them could count."""
    try:
        given = {str(key): values for key, values in request.GET.lists()}
    except SuspiciousOperation as error:  # more parameters than DATA_UPLOAD_MAX_NUMBER_FIELDS
        raise Refused(refusals.TOO_LARGE, "the query string has too many parameters") from error
    for name, values in given.items():
        if len(values) > 1:
            raise refusals.wrong(f"the parameter {name!a:.80} is given {len(values)} times")
    return validate(model, {name: values[0] for name, values in given.items()})


def validate(model: type[Model], given: object) -> Model:
    """``given`` as a ``model``."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise refusals.invalid(error, given) from None


def answer(model: BaseModel, status: int = 200) -> HttpResponse:
    """A model as JSON, its times in UTC; NaN and the infinities, which JSON does not have, are null."""
    return as_json(zoned(model, conf.DATABASE).model_dump_json(), status)


def as_json(text: str, status: int = 200) -> HttpResponse:
    """Nobody keeps a copy, and no browser takes it for a page."""
    response = HttpResponse(text, status=status, content_type="application/json")
    response["X-Content-Type-Options"] = "nosniff"
    response["Cache-Control"] = "no-store"
    return response


def refusal(refused: Refused) -> HttpResponse:
    """The answer to a request that is refused."""
    details = [ErrorDetail.model_validate(detail) for detail in refused.details]
    body = ErrorBody(error=Error(code=refused.code, message=refused.message, details=details))
    response = answer(body, refused.status)
    for name, value in refused.headers.items():
        response[name] = value
    return response
