import math
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from workflow.conf import SETTINGS, conf, validate

DOCUMENTED = {
    "DATABASE": "default",
    "CONCURRENCY": 100,
    "THREADS": 16,
    "POLL_INTERVAL": 1.0,
    "HEARTBEAT_INTERVAL": 60,
    "STALE_LEASE_THRESHOLD": 300,
    "JOB_ABSOLUTE_TIMEOUT": 3600,
    "UNIT_TIMEOUT": 1800,
    "STUCK_THRESHOLD": 900,
    "SWEEP_INTERVAL": 15,
    "SHUTDOWN_GRACE": 30,
    "MAX_BACKOFF": 3600,
    "BACKOFF_JITTER": 0.0,
    "RETENTION_DAYS": 7,
    "MAX_PAYLOAD_BYTES": 1048576,
    "REDACT": [],
    "CAN_VIEW_RUN": None,
    "TRANSPORT": "workflow.transports.postgres",
}
SECONDS = [setting.name for setting in SETTINGS if setting.unit == "seconds"]


def faults(**given: Any) -> list[tuple[str, str]]:
    with override_settings(WORKFLOW=given):
        return validate()


@override_settings(WORKFLOW={})
def test_defaults_are_the_documented_ones() -> None:
    assert {setting.name: getattr(conf, setting.name) for setting in SETTINGS} == DOCUMENTED


def test_a_missing_dict_means_all_defaults(settings: Any) -> None:
    del settings.WORKFLOW
    assert conf.CONCURRENCY == 100
    assert validate() == []


def test_values_are_read_at_each_access() -> None:
    with override_settings(WORKFLOW={"CONCURRENCY": 7}):
        assert conf.CONCURRENCY == 7
        with override_settings(WORKFLOW={"CONCURRENCY": 8}):
            assert conf.CONCURRENCY == 8
        assert conf.CONCURRENCY == 7


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"STALE_LEASE_THRESHOLD": 30}, 300),
        ({"STALE_LEASE_THRESHOLD": 400}, 1200),
        ({"STALE_LEASE_THRESHOLD": timedelta(minutes=10)}, 1800),
        ({"STALE_LEASE_THRESHOLD": 400, "STUCK_THRESHOLD": 5}, 5),
    ],
)
def test_the_stuck_threshold_follows_the_stale_lease_threshold(
    given: dict[str, Any], expected: float
) -> None:
    with override_settings(WORKFLOW=given):
        assert conf.STUCK_THRESHOLD == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"STALE_LEASE_THRESHOLD": 30}, 10),
        ({"STALE_LEASE_THRESHOLD": timedelta(minutes=1)}, 20),
        ({"STALE_LEASE_THRESHOLD": 0.03}, 0.01),
        ({"STALE_LEASE_THRESHOLD": 180}, 60),
        ({"STALE_LEASE_THRESHOLD": 400}, 60),
    ],
)
def test_heartbeats_that_nobody_has_set_follow_the_stale_lease_threshold(
    given: dict[str, Any], expected: float
) -> None:
    assert faults(**given) == []
    with override_settings(WORKFLOW=given):
        assert conf.HEARTBEAT_INTERVAL == expected


@pytest.mark.parametrize(
    ("interval", "threshold", "expected"),
    [
        (0.2, 2, 0.2),
        (20, 60, 20),
        (100, 400, 100),
        (0.7, 2, 2 / 3),
        (1, 2.5, 2.5 / 3),
        (29.9, 60, 20),
        (timedelta(seconds=29), timedelta(minutes=1), 20),
    ],
)
def test_heartbeats_somewhat_too_rare_for_the_lease_are_made_more_frequent(
    interval: Any, threshold: Any, expected: float
) -> None:
    given = {"HEARTBEAT_INTERVAL": interval, "STALE_LEASE_THRESHOLD": threshold}
    assert faults(**given) == []
    with override_settings(WORKFLOW=given):
        assert conf.HEARTBEAT_INTERVAL == expected


@pytest.mark.parametrize("name", SECONDS)
def test_a_duration_may_be_a_timedelta(name: str) -> None:
    with override_settings(WORKFLOW={name: timedelta(minutes=1.5)}):
        assert getattr(conf, name) == 90.0


def test_the_default_list_cannot_be_changed_by_its_readers() -> None:
    with override_settings(WORKFLOW={}):
        conf.REDACT.append("secret")
        assert conf.REDACT == []


def test_an_attribute_that_is_no_setting_names_the_closest() -> None:
    with pytest.raises(
        AttributeError, match=r"no setting 'HEARTBEAT_INTERVALL'; did you mean HEARTBEAT_INTERVAL\?"
    ):
        _ = conf.HEARTBEAT_INTERVALL


@override_settings(WORKFLOW=["CONCURRENCY"])
def test_what_is_no_dict_is_refused() -> None:
    assert [key for key, _ in validate()] == ["WORKFLOW"]
    with pytest.raises(ImproperlyConfigured, match="WORKFLOW must be a dict, not the list"):
        _ = conf.CONCURRENCY


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("CONCURENCY", "; did you mean CONCURRENCY?"),
        ("redact", "; did you mean REDACT?"),
        ("QUITE_ELSE_9", ""),
        (5, ""),
    ],
)
def test_an_unknown_key_is_refused_and_the_closest_named(key: Any, hint: str) -> None:
    with override_settings(WORKFLOW={key: 1}):
        assert validate() == [(str(key), f"is no setting of WORKFLOW{hint}")]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"CONCURRENCY": 1, "THREADS": 1},
        {"HEARTBEAT_INTERVAL": 100, "STALE_LEASE_THRESHOLD": 300},
        {"HEARTBEAT_INTERVAL": timedelta(seconds=1), "STALE_LEASE_THRESHOLD": timedelta(seconds=3)},
        {"JOB_ABSOLUTE_TIMEOUT": 0, "SHUTDOWN_GRACE": 0, "RETENTION_DAYS": 0},
        {"RETENTION_DAYS": 0.5},
        {"MAX_BACKOFF": timedelta(days=1), "BACKOFF_JITTER": 1},
        {"BACKOFF_JITTER": 0.25},
        {"REDACT": ("card", "password")},
        {"REDACT": {"card"}},
    ],
    ids=str,
)
def test_sensible_values_pass(given: dict[str, Any]) -> None:
    assert faults(**given) == []


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("DATABASE", 5, "must be a string"),
        ("DATABASE", "", "must be a string"),
        ("CONCURRENCY", 0, "must be at least 1"),
        ("CONCURRENCY", "8", "must be a whole number"),
        ("CONCURRENCY", 8.0, "must be a whole number"),
        ("CONCURRENCY", True, "must be a whole number"),
        ("CONCURRENCY", None, "must be a whole number"),
        pytest.param("CONCURRENCY", 10**5000, "must be at most 100000", id="too long to print"),
        ("THREADS", timedelta(1), "must be a whole number"),
        ("POLL_INTERVAL", 0, "must be at least 0.01 seconds"),
        ("POLL_INTERVAL", timedelta(0), "must be at least 0.01 seconds"),
        ("POLL_INTERVAL", "1", "must be a number of seconds or a timedelta"),
        ("POLL_INTERVAL", True, "must be a number of seconds or a timedelta"),
        ("SWEEP_INTERVAL", math.nan, "must be a finite number"),
        ("UNIT_TIMEOUT", math.inf, "must be a finite number"),
        ("UNIT_TIMEOUT", 10**400, "must be a finite number"),
        ("UNIT_TIMEOUT", 1e12, "must be at most"),
        ("STUCK_THRESHOLD", None, "must be a number of seconds or a timedelta"),
        ("JOB_ABSOLUTE_TIMEOUT", -1, "must be at least 0 seconds"),
        ("MAX_BACKOFF", 0, "must be at least 0.01 seconds"),
        ("MAX_BACKOFF", -1, "must be at least 0.01 seconds"),
        ("BACKOFF_JITTER", -0.1, "must be at least 0"),
        ("BACKOFF_JITTER", 1.5, "must be at most 1"),
        ("BACKOFF_JITTER", "0.1", "must be a number, not"),
        ("BACKOFF_JITTER", True, "must be a number, not"),
        ("BACKOFF_JITTER", timedelta(0), "must be a number, not"),
        ("BACKOFF_JITTER", math.nan, "must be a finite number"),
        ("RETENTION_DAYS", timedelta(days=7), "must be a number of days"),
        ("RETENTION_DAYS", -1, "must be at least 0 days"),
        ("MAX_PAYLOAD_BYTES", 0, "must be at least 1 bytes"),
        ("MAX_PAYLOAD_BYTES", 2**30, "must be at most 268435455 bytes"),
        ("REDACT", "password", "must be a list of strings"),
        ("REDACT", [5], "must be a list of strings"),
        ("TRANSPORT", None, "must be a string"),
    ],
)
def test_wrong_types_and_values_out_of_bounds_are_named(key: str, value: Any, rule: str) -> None:
    [(where, message)] = faults(**{key: value})
    assert where == key
    assert message.startswith(rule)


@pytest.mark.parametrize(
    "given",
    [
        {"HEARTBEAT_INTERVAL": 150},
        {"HEARTBEAT_INTERVAL": 1, "STALE_LEASE_THRESHOLD": 2},
        {"HEARTBEAT_INTERVAL": timedelta(seconds=45), "STALE_LEASE_THRESHOLD": 60},
        {"HEARTBEAT_INTERVAL": 60, "STALE_LEASE_THRESHOLD": 60},
    ],
    ids=str,
)
def test_heartbeats_too_rare_for_the_lease_are_refused(given: dict[str, Any]) -> None:
    [(key, message)] = faults(**given)
    assert key == "HEARTBEAT_INTERVAL"
    assert "below half of STALE_LEASE_THRESHOLD" in message


def test_every_setting_says_what_it_means() -> None:
    for setting in SETTINGS:
        assert setting.doc.endswith("."), setting.name
        assert setting.fault(getattr(conf, setting.name)) is None, setting.name


@pytest.mark.parametrize("value", [None, "shop.permissions.can_view", max])
def test_a_function_is_named_given_or_left_out(value: Any) -> None:
    assert faults(CAN_VIEW_RUN=value) == []


@pytest.mark.parametrize("value", ["", "can_view", "shop.", "shop/permissions.can_view", 7, ["a.b"], False])
def test_what_is_no_function_and_no_path_is_a_fault(value: Any) -> None:
    [(key, message)] = faults(CAN_VIEW_RUN=value)
    assert key == "CAN_VIEW_RUN"
    assert message.startswith("must be a dotted path, a function or None, not the ")
