"""The JSON API, address by address: what it answers, what it changes, and how it refuses."""

from __future__ import annotations

import io
import json
import re
import uuid
from datetime import datetime
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import PermissionDenied
from django.db import connection, connections
from django.http import HttpRequest
from django.test import Client, RequestFactory, override_settings
from django.urls import include, path, reverse
from django.utils.http import urlencode

from tests.support import web
from tests.support.web import error, post
from workflow import states, workflows
from workflow.api import workflow_routes
from workflow.api.refusals import CODES
from workflow.models import Job, Run, RunEvent
from workflow.redact import MASK
from workflow.registry import registry
from workflow.results import RunPage, RunStatus
from workflow.testing import drain

pytestmark = pytest.mark.django_db
ROOT = "/workflow/"
NOBODY = uuid.UUID("01997a5e-6c00-7d41-9b1e-4a5c2f300000")


@pytest.fixture(autouse=True)
def _registered() -> Any:
    web.FAULTY.clear()
    with registry.isolated():
        workflows.register(web.ORDER)
        workflows.register(web.FREE)
        yield


@pytest.fixture
def operator() -> User:
    return web.person("olga", "view_run", "manage_run")


@pytest.fixture
def client(operator: User) -> Client:
    return web.client_of(operator)


def events(run_id: uuid.UUID, name: str) -> list[Any]:
    return list(RunEvent.objects.filter(run_id=run_id, name=name).values_list("data", flat=True))


# --- who may ------------------------------------------------------------------------------------

READS = ["", "{run}/", "{run}/history/", "openapi.json"]
WRITES = ["dispatch/", "retry/", "cancel/", "{run}/retry/", "{run}/cancel/", "{run}/resume/"]
BODIES: dict[str, Any] = {
    "dispatch/": {"workflow": "web-free"},
    "retry/": {"filter": {"status": "failed"}},
    "cancel/": {"filter": {"status": "waiting"}},
}


def ask(client: Client, method: str, route: str, run_id: uuid.UUID | str = NOBODY) -> Any:
    address = ROOT + route.format(run=run_id)
    if method == "POST":
        return post(client, address, BODIES.get(route, {}))
    return client.generic(method, address)


@pytest.mark.parametrize("route", [*READS, *WRITES])
def test_nobody_gets_401_before_anything_is_looked_up(route, django_assert_num_queries):
    client = Client()
    for method in ("GET", "POST", "PUT", "DELETE"):
        for run_id in (NOBODY, "no-uuid"):
            with django_assert_num_queries(0):
                refused = ask(client, method, route, run_id)
            error(refused, 401, "UNAUTHENTICATED")
            assert refused["WWW-Authenticate"].startswith("Session")


@pytest.mark.parametrize(
    ("permissions", "staff", "reads", "writes"),
    [
        ([], True, False, False),
        (["view_run"], True, True, False),
        (["manage_run"], True, False, True),
        (["view_run", "manage_run"], True, True, True),
        (["view_run", "manage_run"], False, False, False),
    ],
)
def test_a_read_needs_view_run_a_write_manage_run_and_both_a_member_of_staff(
    permissions, staff, reads, writes
):
    client = web.client_of(web.person("p", *permissions, staff=staff))
    run_id = web.waiting()
    for route, allowed in [*((r, reads) for r in READS), *((w, writes) for w in WRITES)]:
        before = workflows.status(run_id)
        response = ask(client, "GET" if route in READS else "POST", route, run_id)
        if allowed:
            assert response.status_code in (200, 201, 409), response.content
        else:
            error(response, 403, "FORBIDDEN")
            assert workflows.status(run_id) == before


def test_a_superuser_may_and_one_who_left_may_not():
    root = User.objects.create_superuser("root")
    client = web.client_of(root)
    assert client.get(ROOT).status_code == 200
    root.is_active = False
    root.save()
    error(client.get(ROOT), 401, "UNAUTHENTICATED")


METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]


@pytest.mark.parametrize("route", [*READS, *WRITES])
def test_another_method_is_405_and_tells_which_is_right(client, route):
    right = {"GET", "HEAD"} if route in READS else {"POST"}
    run_id = web.waiting()
    before = list(Run.objects.values_list("pk", "status", "seq"))
    for method in METHODS:
        if method not in right:
            refused = ask(client, method, route, run_id)
            assert refused.status_code == 405
            assert set(refused["Allow"].split(", ")) == right
            if method != "HEAD":
                error(refused, 405, "METHOD_NOT_ALLOWED")
    assert list(Run.objects.values_list("pk", "status", "seq")) == before
    for method in right:
        assert ask(client, method, route, run_id).status_code != 405


def test_a_session_needs_its_csrf_token(operator):
    client = web.client_of(operator, enforce_csrf_checks=True)
    run_id = web.waiting()
    for route in WRITES:
        refused = error(ask(client, "POST", route, run_id), 403, "CSRF_FAILED")
        assert "CSRF" in refused["message"]
    form = client.post(f"{ROOT}{run_id}/cancel/", {"csrfmiddlewaretoken": "x" * 32})
    error(form, 403, "CSRF_FAILED")
    assert workflows.status(run_id).run.status == "waiting"
    client.get(reverse("admin:index"))
    token = client.cookies["csrftoken"].value
    done = post(client, f"{ROOT}{run_id}/cancel/", {}, headers={"X-CSRFToken": token})
    assert done.status_code == 200
    assert done.json()["run"]["status"] == "cancelled"
    assert client.get(f"{ROOT}{run_id}/").status_code == 200, "a read needs none"


def test_a_token_that_is_kept_in_the_session_counts_as_well(operator, settings):
    settings.CSRF_USE_SESSIONS = True
    client = web.client_of(operator, enforce_csrf_checks=True)
    error(post(client, f"{ROOT}dispatch/", {"workflow": "web-free"}), 403, "CSRF_FAILED")
    page = client.get(reverse("admin:index")).content.decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
    assert token is not None
    done = post(client, f"{ROOT}dispatch/", {"workflow": "web-free"}, headers={"X-CSRFToken": token[1]})
    assert done.status_code == 201


def mount(authorize: Any) -> Any:
    return override_settings(ROOT_URLCONF=web.addresses(path("x/", include(workflow_routes(authorize)))))


def test_authorize_replaces_the_rule_for_reads_and_writes_alike():
    asked: list[tuple[str, str]] = []

    def by_key(request: HttpRequest) -> bool:
        asked.append((request.method or "", request.path))
        return request.headers.get("X-Key") == "k"

    run_id = web.waiting()
    client = Client(enforce_csrf_checks=True)
    with mount(by_key):
        assert client.get("/x/", headers={"X-Key": "k"}).status_code == 200
        done = post(client, f"/x/{run_id}/cancel/", headers={"X-Key": "k"})
        assert done.status_code == 200, "no session, so no token"
        error(client.get("/x/"), 401, "UNAUTHENTICATED")
        error(post(client, f"/x/{run_id}/retry/"), 401, "UNAUTHENTICATED")
    assert asked[:2] == [("GET", "/x/"), ("POST", f"/x/{run_id}/cancel/")]
    assert events(run_id, "cancelled") == [{"reason": None, "by": None}], "nobody is known"


def test_authorize_can_let_in_who_the_rule_would_not_and_keep_out_who_it_would():
    plain = web.client_of(web.person("plain", staff=False))
    staff = web.client_of(web.person("staff", "view_run", "manage_run"))
    with mount(lambda request: not request.user.is_staff):
        assert plain.get("/x/").status_code == 200
        made = post(plain, "/x/dispatch/", {"workflow": "web-free"})
        assert made.status_code == 201
        error(staff.get("/x/"), 403, "FORBIDDEN")
    first = RunEvent.objects.get(run_id=made.json()["run_id"], seq=1)
    assert first.data["by"] == "plain"


def test_authorize_does_not_lift_csrf_for_sessions_nor_for_other_cookies(operator):
    with mount(lambda request: True):
        session = web.client_of(operator, enforce_csrf_checks=True)
        error(post(session, "/x/dispatch/", {"workflow": "web-free"}), 403, "CSRF_FAILED")
        other = Client(enforce_csrf_checks=True)
        other.cookies["token"] = "of-a-cookie-of-its-own"
        error(post(other, "/x/dispatch/", {"workflow": "web-free"}), 403, "CSRF_FAILED")


def test_an_authorize_that_raises_lets_nobody_in():
    def denied(request: HttpRequest) -> bool:
        raise PermissionDenied

    with mount(denied):
        error(Client().get("/x/"), 401, "UNAUTHENTICATED")
        error(web.client_of(web.person("p")).get("/x/"), 403, "FORBIDDEN")
    with mount(lambda request: 1 / 0), pytest.raises(ZeroDivisionError):
        Client().get("/x/")


def test_an_authorize_that_would_always_be_true_is_refused():
    async def coroutine(request: HttpRequest) -> bool:
        return False

    class Asynchronous:
        async def __call__(self, request: HttpRequest) -> bool:
            return False

    for authorize in (coroutine, Asynchronous(), "yes", True):
        with pytest.raises(TypeError, match="plain function"):
            workflow_routes(authorize)  # type: ignore[arg-type]
    with mount(lambda request: coroutine(request)), pytest.raises(TypeError, match="plain function"):
        Client().get("/x/")


def test_no_redirect_to_a_page_where_all_views_need_a_login(settings):
    settings.MIDDLEWARE = [
        *settings.MIDDLEWARE,
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
    ]
    error(Client().get(ROOT), 401, "UNAUTHENTICATED")


# --- GET "" -------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first_and_paged_by_keyset(client):
    made = [workflows.dispatch(web.FREE).run_id for _ in range(5)]
    seen: list[str] = []
    after: dict[str, str] = {}
    for expected in (2, 2, 1):
        page = client.get(ROOT, {"limit": 2, **after}).json()
        assert set(page) == {"items", "next"}
        RunPage.model_validate(page)
        assert len(page["items"]) == expected
        seen += [item["id"] for item in page["items"]]
        after = {"after": page["next"]}
    assert page["next"] is None
    assert seen == [str(run_id) for run_id in reversed(made)]


def test_an_item_has_the_fields_of_a_run_and_no_more(client):
    run_id = web.failed()
    (item,) = client.get(ROOT).json()["items"]
    assert set(item) == {
        *("id", "workflow", "version", "status", "state", "input", "error", "correlation_id"),
        *("created_at", "started_at", "finished_at"),
    }
    assert item["id"] == str(run_id)
    assert item["input"] == {"order_id": "f", "total": 0, "card": None}
    assert item["error"]["code"] == "ACTION_FAILED"
    assert datetime.fromisoformat(item["created_at"]).tzinfo is not None


def test_the_filters_workflow_status_and_correlation_go_together(client):
    one = web.waiting("a", correlation_id="c-1")
    two = web.waiting("b", correlation_id="c-2")
    three = workflows.dispatch(web.FREE, correlation_id="c-1").run_id

    def ids(**query: str) -> list[uuid.UUID]:
        return [uuid.UUID(item["id"]) for item in client.get(ROOT, query).json()["items"]]

    assert ids() == [three, two, one]
    assert ids(workflow="web-order") == [two, one]
    assert ids(status="pending") == [three]
    assert ids(correlation="c-1") == [three, one]
    assert ids(correlation="c-1", workflow="web-order", status="waiting") == [one]
    assert ids(workflow="nothing of that name") == []
    for status in states.RUN_STATUSES:
        assert client.get(ROOT, {"status": status}).status_code == 200


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=-1", "limit"),
        ("limit=1001", "limit"),
        ("limit=ten", "limit"),
        ("limit=", "limit"),
        ("limit=1.5", "limit"),
        ("limit=1_0", "limit"),
        ("limit=%2B5", "limit"),
        ("limit=%EF%BC%95", "limit"),  # a full-width five
        ("limit=" + "9" * 400, "limit"),
        ("after=x", "after"),
        ("after=", "after"),
        ("after=7", "after"),
        ("status=done", "status"),
        ("status=", "status"),
        ("status=FAILED", "status"),
        ("workflow=%00", "workflow"),
        ("correlation=a%00b", "correlation"),
        ("workflow=" + "w" * 256, "workflow"),
        ("correlation=" + "c" * 256, "correlation"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_422_and_is_named(client, query, field):
    refused = error(client.get(f"{ROOT}?{query}"), 422, "REQUEST_INVALID")
    assert [detail["loc"] for detail in refused["details"]] == [[field]]


UNKNOWN = [
    "_connector",
    "_negated",
    "input__a'b",
    "input__password__startswith",
    "status__in",
    "correlation_id",
    "worker__user__password__startswith",
    "pk",
    "order_by",
    "offset",
    "__class__",
    "\0",
    "model_config",
    "\u202e",
    "<script>",
]


@pytest.mark.parametrize("route", [*READS, *WRITES])
def test_an_unknown_parameter_is_422_and_reaches_no_query(client, route, django_assert_max_num_queries):
    for name in UNKNOWN:
        address = f"{ROOT}{route.format(run=NOBODY)}?{urlencode({name: '1'})}"
        with django_assert_max_num_queries(4) as asked:  # session, user and its permissions
            response = client.get(address) if route in READS else post(client, address, BODIES.get(route, {}))
        refused = error(response, 422, "REQUEST_INVALID")
        assert refused["details"][0]["loc"] == [name.replace("\0", "\ufffd")]
        assert not any("workflow_run" in query["sql"] for query in asked.captured_queries)


def test_a_parameter_given_twice_is_422_instead_of_half_obeyed(client):
    refused = error(client.get(f"{ROOT}?status=failed&status=running"), 422, "REQUEST_INVALID")
    assert "2 times" in refused["message"]


def test_a_query_string_without_end_is_refused_in_json(client):
    many = "&".join(f"p{index}=1" for index in range(1100))
    error(client.get(f"{ROOT}?{many}"), 400, "REQUEST_TOO_LARGE")
    hundreds = "&".join(f"p{index}=1" for index in range(900))
    refused = error(client.get(f"{ROOT}?{hundreds}"), 422, "REQUEST_INVALID")
    assert len(refused["details"]) == 100


def test_a_list_asks_as_many_questions_for_one_run_as_for_fifty(client, django_assert_num_queries):
    web.completed()
    with django_assert_num_queries(5):  # session, user, two kinds of permission, the page
        client.get(ROOT)
    for _ in range(49):
        workflows.dispatch(web.FREE)
    with django_assert_num_queries(5):
        assert len(client.get(ROOT).json()["items"]) == 50


# --- GET <uuid>/ --------------------------------------------------------------------------------


def test_a_run_is_its_run_status(client):
    run_id = web.failed()
    response = client.get(f"{ROOT}{run_id}/")
    assert response["Content-Type"] == "application/json"
    assert response["X-Content-Type-Options"] == "nosniff"
    assert RunStatus.model_validate_json(response.content) == workflows.status(run_id)
    assert response.content.decode() == workflows.status(run_id).model_dump_json()
    assert [node["path"] for node in response.json()["nodes"]][:3] == [
        "web-order",
        "web-order.pay",
        "web-order.pay.charge",
    ]


@pytest.mark.parametrize("suffix", ["", "history/", "retry/", "cancel/", "resume/"])
@pytest.mark.parametrize(
    "run_id", [str(NOBODY), "no-uuid", "0", "%00", "%F0%9F%92%A9", "a" * 2000, "<script>", "..", "admin"]
)
def test_an_unknown_run_and_what_is_no_run_id_are_404(client, run_id, suffix):
    address = f"{ROOT}{run_id}/{suffix}"
    response = post(client, address) if suffix in {"retry/", "cancel/", "resume/"} else client.get(address)
    error(response, 404, "RUN_NOT_FOUND")


def test_a_polling_client_is_told_that_nothing_has_changed(client, django_assert_num_queries):
    run_id = web.waiting()
    address = f"{ROOT}{run_id}/"
    first = client.get(address)
    tag = first["ETag"]
    with django_assert_num_queries(5):  # session, user, two kinds of permission, the tag
        same = client.get(address, headers={"If-None-Match": tag})
    assert (same.status_code, same.content, same["ETag"]) == (304, b"", tag)
    assert client.get(address, headers={"If-None-Match": f'"other", {tag}'}).status_code == 304
    assert client.get(address, headers={"If-None-Match": '"other"'}).status_code == 200
    assert client.get(address, headers={"If-None-Match": "*"}).status_code == 304


def test_the_tag_changes_with_every_transition_and_with_what_is_masked(client):
    run_id = workflows.dispatch(web.ORDER, {"order_id": "o"}).run_id
    address = f"{ROOT}{run_id}/"
    tags = [client.get(address)["ETag"]]
    drain(run_id)
    tags.append(client.get(address)["ETag"])
    workflows.resume(run_id, {"ok": True})
    tags.append(client.get(address)["ETag"])
    drain(run_id)
    tags.append(client.get(address)["ETag"])
    with override_settings(WORKFLOW={"REDACT": ["card"]}):
        tags.append(client.get(address)["ETag"])
    assert len(set(tags)) == 5
    for tag in tags[:-2]:
        fresh = client.get(address, headers={"If-None-Match": tag})
        assert fresh.status_code == 200
        assert fresh.json()["run"]["status"] == "completed"


def test_head_answers_like_get_without_a_body(client):
    run_id = web.waiting()
    response = client.head(f"{ROOT}{run_id}/")
    assert (response.status_code, response.content) == (200, b"")
    assert response["ETag"] == client.get(f"{ROOT}{run_id}/")["ETag"]


def test_an_answer_is_never_kept_by_anybody_else(client):
    run_id = web.waiting()
    assert client.get(f"{ROOT}{run_id}/")["Cache-Control"] == "private, no-cache"
    assert client.get(ROOT)["Cache-Control"] == "no-store"
    assert client.get(f"{ROOT}{NOBODY}/")["Cache-Control"] == "no-store"


def test_what_json_has_no_number_for_is_null(client):
    run_id = web.completed()
    # jsonb's numbers reach further than Python's floats.
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE workflow_run SET state = jsonb_build_object('big', 1e400::numeric + 0.5) WHERE id = %s",
            [run_id],
        )
    body = client.get(f"{ROOT}{run_id}/").content.decode()

    def refuse(name: str) -> None:
        raise AssertionError(name)

    assert json.loads(body, parse_constant=refuse)["run"]["state"] == {"big": None}


# --- GET <uuid>/history/ ------------------------------------------------------------------------


def test_the_history_is_what_was_pushed_in_order_and_from_any_number_on(client):
    run_id = web.failed()
    address = f"{ROOT}{run_id}/history/"
    whole = client.get(address).json()
    assert whole["next"] is None
    assert [item["seq"] for item in whole["items"]] == list(range(1, len(whole["items"]) + 1))
    stored = list(RunEvent.objects.filter(run_id=run_id).order_by("seq"))
    assert [(item["name"], item["node"]) for item in whole["items"]] == [(e.name, e.node) for e in stored]
    for item, entry in zip(whole["items"], stored, strict=True):
        assert item["type"] == "workflow.event"
        assert item["run_id"] == str(run_id)
        assert datetime.fromisoformat(item["at"]) == entry.at
        assert {**item, **(entry.data or {})} == item, "with all that the event carries"
    later = client.get(address, {"after": 3}).json()["items"]
    assert later == whole["items"][3:]
    assert client.get(address, {"after": len(stored)}).json() == {"items": [], "next": None}
    assert client.get(address, {"after": 2**31 - 1}).json() == {"items": [], "next": None}


def test_the_history_comes_in_pages(client):
    run_id = web.failed()
    address = f"{ROOT}{run_id}/history/"
    whole = client.get(address).json()["items"]
    seen: list[Any] = []
    after: int | None = 0
    for _ in whole:
        page = client.get(address, {"after": after, "limit": 2}).json()
        seen += page["items"]
        after = page["next"]
        if after is None:
            break
    assert seen == whole
    assert after is None


@pytest.mark.parametrize(
    "query",
    [
        "after=-1",
        "after=x",
        "after=",
        f"after={2**31}",
        f"after={NOBODY}",
        "after=1.0",
        "limit=0",
        "limit=1001",
    ],
)
def test_a_bad_place_in_the_history_is_422(client, query):
    run_id = web.waiting()
    refused = error(client.get(f"{ROOT}{run_id}/history/?{query}"), 422, "REQUEST_INVALID")
    assert refused["details"][0]["loc"] == [query.split("=")[0]]


def test_no_field_of_a_log_can_pose_as_one_of_the_entry(client):
    run_id = web.completed()
    seq = Run.objects.get(pk=run_id).seq + 1
    RunEvent.objects.create(
        run_id=run_id,
        seq=seq,
        name="log",
        data={
            "seq": 1,
            "type": "x",
            "name": "completed",
            "run_id": "x",
            "at": "x",
            "node": 7,
            "message": "m",
        },
    )
    (item,) = client.get(f"{ROOT}{run_id}/history/", {"after": seq - 1}).json()["items"]
    assert item.pop("at")
    assert item == {
        "type": "workflow.event",
        "name": "log",
        "run_id": str(run_id),
        "seq": seq,
        "node": None,
        "message": "m",
    }


# --- POST dispatch/ -----------------------------------------------------------------------------


def test_a_dispatch_answers_201_and_then_200_for_the_same_key(client):
    body = {"workflow": "web-order", "input": {"order_id": "o"}, "idempotency_key": "k"}
    first = post(client, f"{ROOT}dispatch/", body)
    assert first.status_code == 201
    assert set(first.json()) == {"run_id", "created"}
    assert first.json()["created"] is True
    assert first["Location"] == f"{ROOT}{first.json()['run_id']}/"
    assert client.get(first["Location"]).json()["run"]["input"]["order_id"] == "o"
    again = post(client, f"{ROOT}dispatch/", body)
    assert again.status_code == 200
    assert again.json() == {"run_id": first.json()["run_id"], "created": False}
    assert Run.objects.count() == 1


def test_a_dispatch_hands_all_its_options_on_and_records_who_asked(client):
    body = {
        "workflow": "web-order",
        "input": {"order_id": "o", "total": 3},
        "context": {"tenant": 7},
        "correlation_id": "c",
        "queue": "slow",
        "priority": -5,
        "delay": 60,
    }
    run_id = post(client, f"{ROOT}dispatch/", body).json()["run_id"]
    run = Run.objects.get(pk=run_id)
    assert (run.context, run.correlation_id, run.queue, run.priority) == ({"tenant": 7}, "c", "slow", -5)
    job = Job.objects.get(run_id=run_id)
    assert 59 < (job.available_at - run.created_at).total_seconds() < 61
    assert events(run.pk, "log") == [{"message": "dispatched", "by": "olga"}]


@pytest.mark.parametrize(
    ("body", "places"),
    [
        ({}, [["workflow"]]),
        ({"workflow": None}, [["workflow"]]),
        ({"workflow": ""}, [["workflow"]]),
        ({"workflow": 7}, [["workflow"]]),
        ({"workflow": ["web-free"]}, [["workflow"]]),
        ({"workflow": "w" * 81}, [["workflow"]]),
        ({"workflow": "a\0"}, [["workflow"]]),
        ({"workflow": "web-free", "run_id": "x"}, [["run_id"]]),
        ({"workflow": "web-free", "by": "somebody else"}, [["by"]]),
        ({"workflow": "web-free", "priority": "1"}, [["priority"]]),
        ({"workflow": "web-free", "priority": True}, [["priority"]]),
        ({"workflow": "web-free", "priority": 1.5}, [["priority"]]),
        ({"workflow": "web-free", "priority": 2**31}, [["priority"]]),
        ({"workflow": "web-free", "delay": -1}, [["delay"]]),
        ({"workflow": "web-free", "delay": 1e308}, [["delay"]]),
        ({"workflow": "web-free", "delay": "1"}, [["delay"]]),
        ({"workflow": "web-free", "queue": ""}, [["queue"]]),
        ({"workflow": "web-free", "queue": None}, [["queue"]]),
        ({"workflow": "web-free", "queue": "q" * 101}, [["queue"]]),
        ({"workflow": "web-free", "correlation_id": 5}, [["correlation_id"]]),
        ({"workflow": "web-free", "correlation_id": ""}, [["correlation_id"]]),
        ({"workflow": "web-free", "idempotency_key": "k" * 256}, [["idempotency_key"]]),
        ({"workflow": "web-free", "idempotency_key": "\ud800"}, [["idempotency_key"]]),
        ({"workflow": "web-free", "correlation_id": "\0"}, [["correlation_id"]]),
        ({"x": 1, "y": 2, "workflow": "web-free"}, [["x"], ["y"]]),
        ([], [[]]),
        ("text", [[]]),
        (None, [["workflow"]]),
        (7, [[]]),
        (True, [[]]),
    ],
)
def test_a_body_of_the_wrong_shape_is_422_and_says_where(client, body, places):
    response = post(client, f"{ROOT}dispatch/", body if body is None else json.dumps(body))
    refused = error(response, 422, "REQUEST_INVALID")
    assert [detail["loc"] for detail in refused["details"]] == places
    assert not Run.objects.exists()


def test_an_input_that_the_workflow_does_not_accept_is_422_with_pydantics_list(client):
    body = {"workflow": "web-order", "input": {"total": "many"}}
    refused = error(post(client, f"{ROOT}dispatch/", body), 422, "WORKFLOW_INPUT_INVALID")
    assert [(d["loc"], d["type"]) for d in refused["details"]] == [
        (["input", "order_id"], "missing"),
        (["input", "total"], "int_parsing"),
    ]
    assert not Run.objects.exists()


@pytest.mark.parametrize(
    "data",
    [
        '{"a": "\\u0000"}',
        '{"\\ud800": 1}',
        '{"a": 1e999}',
        "[" * 300 + "]" * 300,
        json.dumps("x" * 1_100_000),
    ],
)
@pytest.mark.parametrize("place", ["input", "context"])
def test_a_payload_that_cannot_be_stored_is_422(client, data, place):
    body = f'{{"workflow": "web-free", "{place}": {data}}}'
    refused = error(post(client, f"{ROOT}dispatch/", body), 422, "PAYLOAD_INVALID")
    assert place in refused["message"]
    assert not Run.objects.exists()


def test_a_workflow_that_nobody_registered_is_404(client):
    refused = error(post(client, f"{ROOT}dispatch/", {"workflow": "os.system"}), 404, "WORKFLOW_UNKNOWN")
    assert "os.system" in refused["message"]


NO_JSON = [
    "{",
    "{'a': 1}",
    "nonsense",
    '{"workflow": NaN}',
    '{"workflow": Infinity}',
    '{"workflow": "web-free",}',
    '{"workflow": "web-free"} x',
    b'{"workflow": "\xff"}',
    b"\x00",
    "[" * 100_000,
    '{"workflow": ' + "9" * 5000 + "}",
    "workflow=web-free",
]


@pytest.mark.parametrize("route", WRITES)
def test_what_is_not_json_is_400(client, route):
    run_id = web.waiting()
    for body in NO_JSON:
        error(post(client, ROOT + route.format(run=run_id), body), 400, "MALFORMED_JSON")
    assert workflows.status(run_id).run.status == "waiting"
    assert Run.objects.count() == 1


def test_a_form_is_not_json(client):
    error(client.post(f"{ROOT}dispatch/", {"workflow": "web-free"}), 400, "MALFORMED_JSON")
    form = client.post(
        f"{ROOT}dispatch/", "workflow=web-free", content_type="application/x-www-form-urlencoded"
    )
    error(form, 400, "MALFORMED_JSON")


def test_json_is_json_in_any_of_its_encodings(client):
    body = json.dumps({"workflow": "web-order", "input": {"order_id": "ü"}}, ensure_ascii=False)
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32"):
        response = post(client, f"{ROOT}dispatch/", body.encode(encoding))
        assert response.status_code == 201
        assert Run.objects.get(pk=response.json()["run_id"]).input["order_id"] == "ü"


def test_a_body_over_djangos_limit_is_400_in_json(client, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    body = {"workflow": "web-free", "input": "x" * 2000}
    for route in WRITES:
        error(post(client, ROOT + route.format(run=NOBODY), body), 400, "REQUEST_TOO_LARGE")


def test_a_body_that_breaks_off_is_400(operator):
    class Broken(io.RawIOBase):
        def read(self, *args: Any) -> bytes:
            raise OSError("connection reset")

    request = RequestFactory().post(f"{ROOT}dispatch/", b"{}", content_type="application/json")
    request.user = operator
    request._dont_enforce_csrf_checks = True  # type: ignore[attr-defined]
    request._stream = Broken()  # type: ignore[attr-defined]
    view = next(p.callback for p in workflow_routes() if p.name == "workflow-api-dispatch")
    error_response = view(request)
    assert error_response.status_code == 400
    assert json.loads(error_response.content)["error"]["code"] == "REQUEST_UNREADABLE"


def test_an_unknown_field_of_any_spelling_is_shown_as_text(client):
    hostile = ["</script><img src=x onerror=alert(1)>", "\u202egnp.exe", "\0", "x" * 100_000]
    refused = error(
        post(client, f"{ROOT}dispatch/", {"workflow": "web-free", **dict.fromkeys(hostile, 1)}),
        422,
        "REQUEST_INVALID",
    )
    assert refused["details"][0]["loc"] == [hostile[0]]
    assert len(refused["details"]) == 4
    assert max(len(detail["loc"][0]) for detail in refused["details"]) <= 200
    for surrogate in ({"\ud800": 1}, {"workflow": "\ud800"}, {"workflow": "web-free", "\udfff": 1}):
        error(post(client, f"{ROOT}dispatch/", surrogate), 422, "REQUEST_INVALID")


@pytest.mark.parametrize(
    ("path", "body", "loc", "rule"),
    [
        ("dispatch/", {"workflow": "a\0"}, ["workflow"], "must not hold a NUL character"),
        ("cancel/", {"filter": {}}, ["filter"], "the filter must name a workflow, a status, a correlation or ids"),
        (
            "retry/",
            {"filter": {"status": "failed", "ids": [str(NOBODY)]}},
            ["filter"],
            "ids can't be combined with other conditions",
        ),
    ],
)  # fmt: skip
def test_a_rule_of_ours_is_said_without_the_words_of_a_library(client, path, body, loc, rule):
    refused = error(post(client, f"{ROOT}{path}", body), 422, "REQUEST_INVALID")
    assert refused["message"] == f"{loc[0]}: {rule}"
    assert refused["details"] == [{"type": "value_error", "loc": loc, "msg": rule}]


# --- POST <uuid>/retry|cancel|resume/ -----------------------------------------------------------


def test_a_retry_lets_a_failed_run_go_on_and_records_who_asked(client):
    run_id = web.failed()
    web.FAULTY.clear()
    response = post(client, f"{ROOT}{run_id}/retry/")
    assert response.status_code == 200
    assert RunStatus.model_validate_json(response.content).run.status == "running"
    assert events(run_id, "resumed") == [{"retry": True, "from_node": None, "by": "olga"}]
    drain(run_id)
    assert workflows.status(run_id).run.status == "waiting"


def test_a_retry_can_go_back_to_a_node(client):
    run_id = web.failed()
    node = {"from_node": "web-order.pay.charge"}
    assert post(client, f"{ROOT}{run_id}/retry/", node).status_code == 200
    assert events(run_id, "resumed")[0]["from_node"] == "web-order.pay.charge"


def test_a_retry_from_a_node_that_is_not_there_is_404(client):
    run_id = web.failed()
    error(post(client, f"{ROOT}{run_id}/retry/", {"from_node": "web-order.nope"}), 404, "NODE_UNKNOWN")
    assert workflows.status(run_id).run.status == "failed"


@pytest.mark.parametrize("verb", ["cancel", "resume"])
def test_a_form_without_a_field_is_no_body(client, verb):
    run_id = web.waiting()
    response = client.post(f"{ROOT}{run_id}/{verb}/")  # Django's test client sends an empty form
    assert response.status_code == 200
    assert workflows.status(run_id).run.status != "waiting"
    error(client.post(f"{ROOT}{run_id}/{verb}/", {"reason": "x"}), 400, "MALFORMED_JSON")


def test_a_cancel_ends_a_run_and_keeps_the_reason(client):
    run_id = web.waiting()
    response = post(client, f"{ROOT}{run_id}/cancel/", {"reason": "wrong address"})
    assert response.json()["run"]["status"] == "cancelled"
    assert events(run_id, "cancelled") == [{"reason": "wrong address", "by": "olga"}]


def test_a_cancel_can_undo_what_is_done(client):
    run_id = web.waiting()
    response = post(client, f"{ROOT}{run_id}/cancel/", {"compensate": True})
    assert response.json()["run"]["status"] == "compensating"


def test_a_resume_hands_its_payload_to_the_wait(client):
    run_id = web.waiting()
    response = post(client, f"{ROOT}{run_id}/resume/", {"payload": {"ok": [1, None]}})
    assert response.json()["run"]["status"] == "running"
    assert events(run_id, "resumed") == [{"by": "olga"}]
    drain(run_id)
    status = workflows.status(run_id)
    assert status.run.status == "completed"
    assert status.run.state["ok"] == [1, None]


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("retry", {"from_node": 7}),
        ("retry", {"from_node": ""}),
        ("retry", {"from_node": "a\0"}),
        ("retry", {"from_node": "a" * 1001}),
        ("retry", {"payload": 1}),
        ("cancel", {"reason": 7}),
        ("cancel", {"reason": "\0"}),
        ("cancel", {"reason": "r" * 10_001}),
        ("cancel", {"compensate": "yes"}),
        ("cancel", {"compensate": 1}),
        ("cancel", {"from_node": "x"}),
        ("resume", {"reason": "x"}),
        ("resume", {"data": 1}),
    ],
)
def test_a_wrong_body_changes_nothing(client, verb, body):
    run_id = web.failed() if verb == "retry" else web.waiting()
    before = workflows.status(run_id)
    error(post(client, f"{ROOT}{run_id}/{verb}/", body), 422, "REQUEST_INVALID")
    assert workflows.status(run_id) == before


def test_a_payload_that_cannot_be_stored_leaves_the_run_parked(client):
    run_id = web.waiting()
    error(post(client, f"{ROOT}{run_id}/resume/", '{"payload": "\\u0000"}'), 422, "PAYLOAD_INVALID")
    assert workflows.status(run_id).run.status == "waiting"


@pytest.mark.parametrize("verb", ["retry", "cancel", "resume"])
def test_a_run_whose_status_does_not_allow_it_is_409(client, verb):
    run_id = web.completed()
    before = workflows.status(run_id)
    refused = error(post(client, f"{ROOT}{run_id}/{verb}/"), 409, "RUN_STATE_CONFLICT")
    assert "completed" in refused["message"] or "parked" in refused["message"]
    assert workflows.status(run_id) == before


@pytest.mark.parametrize("verb", ["retry", "cancel", "resume"])
def test_the_same_button_pressed_twice_counts_once(client, verb):
    run_id = web.failed() if verb == "retry" else web.waiting()
    answers = [post(client, f"{ROOT}{run_id}/{verb}/").status_code for _ in range(2)]
    assert answers == [200, 409]


def test_no_body_at_all_is_an_empty_one(client):
    for body in (b"", b"  \n"):
        run_id = web.waiting()
        assert post(client, f"{ROOT}{run_id}/cancel/", body).status_code == 200


# --- secrets ------------------------------------------------------------------------------------


@override_settings(WORKFLOW={"REDACT": ["card"]})
def test_what_is_masked_is_masked_in_every_answer(client):
    secret = "4111-1111-1111"
    run_id = web.failed(card=secret)
    answers = [
        client.get(ROOT),
        client.get(f"{ROOT}{run_id}/"),
        client.get(f"{ROOT}{run_id}/history/"),
        post(client, f"{ROOT}{run_id}/retry/"),
        post(client, f"{ROOT}{run_id}/cancel/"),
    ]
    for response in answers:
        assert response.status_code == 200
        assert secret not in response.content.decode()
        assert response["Content-Type"] == "application/json"
    assert MASK in answers[0].content.decode()
    assert answers[1].json()["run"]["input"]["card"] == MASK
    assert answers[1].json()["run"]["error"]["code"] == "ACTION_FAILED"
    failure = next(i for i in answers[2].json()["items"] if i["name"] == "action.failed")
    assert failure["error"]["code"] == "ACTION_FAILED"
    assert failure["error"]["node"] == "web-order.pay.charge"
    assert Run.objects.get(pk=run_id).input["card"] == secret, "what is stored stays"


@override_settings(WORKFLOW={"REDACT": ["card"]})
def test_a_refused_input_is_not_repeated(client):
    body = {"workflow": "web-order", "input": {"order_id": "o", "card": "4000-1234-5678"}}
    response = post(client, f"{ROOT}dispatch/", body)
    refused = error(response, 422, "WORKFLOW_INPUT_INVALID")
    assert "4000" not in response.content.decode()
    assert refused["details"][0]["loc"] == ["input", "card"]


def test_hostile_texts_come_back_as_the_texts_they_are(client):
    hostile = "</script><img src=x onerror=alert(1)>\u202e\u2028'\""
    run_id = web.failed(hostile, correlation_id=hostile)
    response = client.get(f"{ROOT}{run_id}/")
    assert response["Content-Type"] == "application/json"
    assert response["X-Content-Type-Options"] == "nosniff"
    run = response.json()["run"]
    assert run["correlation_id"] == hostile
    assert hostile in run["error"]["message"]
    assert client.get(ROOT, {"correlation": hostile}).json()["items"][0]["id"] == str(run_id)


# --- where it stands ----------------------------------------------------------------------------


def test_refusals_leave_a_projects_transaction_usable(client, settings):
    connections["default"].settings_dict["ATOMIC_REQUESTS"] = True
    try:
        run_id = web.completed()
        error(post(client, f"{ROOT}{run_id}/cancel/"), 409, "RUN_STATE_CONFLICT")
        assert post(client, f"{ROOT}dispatch/", {"workflow": "web-free"}).status_code == 201
    finally:
        connections["default"].settings_dict["ATOMIC_REQUESTS"] = False


def test_the_addresses_have_names_and_work_under_any_prefix(operator):
    client = web.client_of(operator)
    assert reverse("workflow-api-runs") == ROOT
    assert reverse("workflow-api-run", args=[NOBODY]) == f"{ROOT}{NOBODY}/"
    with override_settings(ROOT_URLCONF=web.addresses(path("", include(workflow_routes())))):
        made = post(client, "/dispatch/", {"workflow": "web-free"})
        assert made["Location"] == f"/{made.json()['run_id']}/"
        assert client.get(made["Location"]).status_code == 200


def test_nobody_but_a_user_of_this_site_is_a_user():
    """Without the authentication middleware there is no `request.user` at all."""
    view = next(p.callback for p in workflow_routes() if p.name == "workflow-api-runs")
    request = RequestFactory().get(ROOT)
    assert view(request).status_code == 401
    request.user = AnonymousUser()
    assert view(request).status_code == 401


def test_every_code_has_a_status_of_the_contract():
    assert set(CODES.values()) == {400, 401, 403, 404, 405, 409, 422}
