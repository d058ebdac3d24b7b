"""Who may use the JSON API: sessions, CSRF tokens, and a rule of the project's own."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.test import Client, override_settings
from django.urls import include, path, reverse

from tests.edges.api.conftest import NOBODY, READS, ROOT, WRITES, ask, events
from tests.support import web
from tests.support.web import error, post
from workflow import workflows
from workflow.api import workflow_routes
from workflow.models import Run, RunEvent

pytestmark = pytest.mark.django_db


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
        refused = client.get("/x/")
        assert error(refused, 401, "UNAUTHENTICATED")["message"] == "not allowed by this project's own rule"
        assert not refused["WWW-Authenticate"].startswith("Session")
        error(post(client, f"/x/{run_id}/retry/"), 401, "UNAUTHENTICATED")
    assert asked[:2] == [("GET", "/x/"), ("POST", f"/x/{run_id}/cancel/")]
    assert events(run_id, "cancelled") == [{"reason": None, "by": None}], "nobody is known"


def test_an_authorize_may_say_who_a_client_is_that_has_no_session():
    robot = web.person("robot", staff=False)

    def by_key(request: HttpRequest) -> bool:
        request.user = robot
        return True

    with mount(by_key):
        made = post(Client(enforce_csrf_checks=True), "/x/dispatch/", {"workflow": "web-free"})
        assert made.status_code == 201, "no cookie, so no token"
    assert RunEvent.objects.get(run_id=made.json()["run_id"], seq=1).data["by"] == "robot"


def test_a_document_of_a_rule_of_the_projects_declares_no_session():
    with mount(lambda request: True):
        document = Client().get("/x/openapi.json").json()
    assert "security" not in document
    assert "securitySchemes" not in document["components"]


def test_addresses_are_made_whatever_the_settings_are_so_that_a_check_can_tell():
    with override_settings(WORKFLOW=["x"]):
        routes = workflow_routes()
    with override_settings(WORKFLOW={"DATABASE": "flows"}):
        marked = {
            alias for route in routes for alias in ("default", "flows") if is_marked(route.callback, alias)
        }
    assert marked == {"flows"}


def is_marked(view: Any, alias: str) -> bool:
    """Whether Django makes no transaction of the request on that database."""
    return alias in getattr(view, "_non_atomic_requests", ())


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
