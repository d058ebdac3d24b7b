"""Pausing queues over the JSON API."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from tests.edges.api.conftest import ROOT
from tests.support.web import error, post
from workflow import workflows
from workflow.results import PausedQueueInfo

pytestmark = pytest.mark.django_db


def listed(client: Any) -> list[PausedQueueInfo]:
    response = client.get(f"{ROOT}pauses/")
    assert response.status_code == 200
    return [PausedQueueInfo.model_validate(item) for item in json.loads(response.content)["items"]]


def test_a_queue_is_paused_until_it_is_resumed_in_the_name_of_who_asked(client, caplog):
    response = post(client, f"{ROOT}pause/", {"queue": "reports", "reason": "stocktaking"})
    assert response.status_code == 200
    paused = PausedQueueInfo.model_validate_json(response.content)
    assert (paused.queue, paused.until, paused.reason, paused.by) == ("reports", None, "stocktaking", "olga")
    assert listed(client) == workflows.paused_queues() == [paused]

    with caplog.at_level(logging.INFO, "workflow"):
        response = post(client, f"{ROOT}unpause/", {"queue": "reports"})
    assert json.loads(response.content) == {"queue": "reports", "resumed": True}
    assert "queue 'reports' is resumed by olga" in caplog.text
    assert listed(client) == workflows.paused_queues() == []
    assert json.loads(post(client, f"{ROOT}unpause/", {"queue": "reports"}).content)["resumed"] is False


def test_a_pause_ends_after_seconds_or_at_a_moment_and_a_later_one_replaces_it(client):
    before = timezone.now()
    first = post(client, f"{ROOT}pause/", {"queue": "reports", "seconds": 300, "reason": "first"})
    until = PausedQueueInfo.model_validate_json(first.content).until
    assert until is not None
    assert timedelta(seconds=290) < until - before < timedelta(seconds=360)

    moment = (before + timedelta(hours=2)).replace(microsecond=0)
    for written in (moment.isoformat(), moment.isoformat().replace("+00:00", "Z")):
        post(client, f"{ROOT}pause/", {"queue": "reports", "until": written})
        (paused,) = listed(client)
        assert (paused.until, paused.reason) == (moment, "")


def test_pauses_are_listed_by_name(client):
    for queue in ("zeta", "Äpfel", "alpha"):
        assert post(client, f"{ROOT}pause/", {"queue": queue}).status_code == 200
    assert [pause.queue for pause in listed(client)] == [pause.queue for pause in workflows.paused_queues()]
    assert {pause.queue for pause in listed(client)} == {"alpha", "zeta", "Äpfel"}


@pytest.mark.parametrize(
    ("body", "place", "rule"),
    [
        ({}, ["queue"], "Field required"),
        ({"queue": ""}, ["queue"], "at least 1 character"),
        ({"queue": "q" * 101}, ["queue"], "at most 100 characters"),
        ({"queue": "a\0b"}, ["queue"], "NUL"),
        ({"queue": "#events"}, ["queue"], "the engine's own queue"),
        ({"queue": "q", "seconds": 0}, ["seconds"], "greater than 0"),
        ({"queue": "q", "seconds": "60"}, ["seconds"], "valid number"),
        ({"queue": "q", "seconds": 1e300}, ["seconds"], "less than or equal to"),
        ({"queue": "q", "until": 1_900_000_000}, ["until"], "valid datetime"),
        ({"queue": "q", "until": "1900000000"}, ["until"], "ISO 8601"),
        ({"queue": "q", "until": "tomorrow"}, ["until"], "ISO 8601"),
        ({"queue": "q", "until": "2999-01-01T00:00"}, ["until"], "timezone"),
        ({"queue": "q", "until": "2020-01-01T00:00Z"}, [], "in the future"),
        ({"queue": "q", "until": "0001-01-01T00:00+14:00"}, [], "in the future"),
        ({"queue": "q", "until": "0001-01-01T00:00+23:59"}, [], "in the future"),
        ({"queue": "q", "until": "9999-12-31T23:59:59-14:00"}, [], "year"),
        ({"queue": "q", "until": "9999-12-31T23:59:59-23:59"}, [], "year"),
        ({"queue": "q", "until": "9000-12-31T23:59:59-23:59"}, [], "year"),
        ({"queue": "q", "until": "2999-01-01T00:00Z", "seconds": 5}, [], "can't be given together"),
        ({"queue": "q", "reason": "r" * 100_000}, ["reason"], "at most"),
        ({"queue": "q", "reason": None}, ["reason"], "valid string"),
        ({"queue": "q", "by": "mallory"}, ["by"], "not permitted"),
    ],
)
def test_a_pause_that_cannot_be_is_422_and_nothing_is_paused(client, body, place, rule):
    refused = error(post(client, f"{ROOT}pause/", body), 422, "REQUEST_INVALID")
    assert refused["details"][0]["loc"] == place
    assert rule in refused["details"][0]["msg"]
    assert workflows.paused_queues() == []


def test_a_pause_that_holds_stays_as_it_is_when_a_new_one_is_refused(client):
    kept = workflows.pause_queue("q", reason="kept")
    error(post(client, f"{ROOT}pause/", {"queue": "q", "until": "2020-01-01T00:00Z"}), 422, "REQUEST_INVALID")
    assert workflows.paused_queues() == [kept]
