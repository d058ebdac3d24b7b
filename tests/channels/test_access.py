"""Who may watch: asked before a socket is accepted, and again while it is open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.contrib.sessions.models import Session

from tests.channels.conftest import PATIENCE, Socket, cookie_of, opened, refused
from tests.support.web import completed, person
from workflow.consumers import base
from workflow.routing import websocket_urlpatterns

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_redis")]

ALL = "/ws/workflow/"
ORIGIN = b"origin"


async def paths() -> list[str]:
    run_id = await sync_to_async(completed)()
    return [ALL, f"/ws/workflow/{run_id}/"]


async def test_nobody_is_logged_in() -> None:
    for path in await paths():
        assert await refused(path) == 4401
        assert await refused(path, (b"cookie", b"sessionid=0123456789abcdef0123456789abcdef")) == 4401


@pytest.mark.parametrize(
    ("permissions", "staff"), [((), True), (("manage_run",), True), (("view_run",), False), ((), False)]
)
async def test_only_staff_with_the_permission_may(permissions: tuple[str, ...], staff: bool) -> None:
    cookie = await sync_to_async(lambda: cookie_of(person("someone", *permissions, staff=staff)))()
    for path in await paths():
        assert await refused(path, cookie) == 4403


async def test_a_superuser_needs_no_permission_of_its_own() -> None:
    cookie = await sync_to_async(
        lambda: cookie_of(User.objects.create_superuser("root", password="of no use"))
    )()
    async with opened(ALL, cookie) as socket:
        assert (await socket.next())["type"] == "snapshot"


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "https://localhost.evil.example",
        "https://evil.example/localhost",
        "http://localhost@evil.example",
        "null",
        "",
        "http://[",
        "localhost",
    ],
)
async def test_the_page_of_another_site_gets_nothing(operator: User, origin: str) -> None:
    cookie = await sync_to_async(cookie_of)(operator)
    for path in await paths():
        assert await refused(path, cookie, (ORIGIN, origin.encode())) == 4403


@pytest.mark.parametrize(
    "origin", ["http://localhost", "http://localhost:8000", "https://127.0.0.1", "http://[::1]:1"]
)
async def test_pages_of_this_site_may(operator: User, origin: str) -> None:
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(ALL, cookie, (ORIGIN, origin.encode())) as socket:
        assert (await socket.next())["type"] == "snapshot"


async def test_without_allowed_hosts_those_of_a_developer_may(operator: User, settings: Any) -> None:
    settings.ALLOWED_HOSTS, settings.DEBUG = [], True
    cookie = await sync_to_async(cookie_of)(operator)
    for origin in (b"http://localhost:8000", b"http://shop.localhost:8000"):
        async with opened(ALL, cookie, (ORIGIN, origin)) as socket:
            assert (await socket.next())["type"] == "snapshot"
    assert await refused(ALL, cookie, (ORIGIN, b"http://shop.example")) == 4403


async def test_with_any_host_allowed_the_address_that_was_asked_decides(
    operator: User, settings: Any
) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    cookie = await sync_to_async(cookie_of)(operator)
    host = (b"host", b"shop.example")
    assert await refused(ALL, cookie, host, (ORIGIN, b"https://evil.example")) == 4403
    async with opened(ALL, cookie, host, (ORIGIN, b"https://shop.example")) as socket:
        assert (await socket.next())["type"] == "snapshot"


async def test_trusted_origins_are_trusted_here_too(operator: User, settings: Any) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://pages.example"]
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(ALL, cookie, (ORIGIN, b"https://pages.example")) as socket:
        assert (await socket.next())["type"] == "snapshot"
    assert await refused(ALL, cookie, (ORIGIN, b"http://pages.example")) == 4403


async def test_trusted_origins_may_be_all_hosts_of_a_domain(operator: User, settings: Any) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://*.pages.example"]
    cookie = await sync_to_async(cookie_of)(operator)
    async with opened(ALL, cookie, (ORIGIN, b"https://eu.pages.example")) as socket:
        assert (await socket.next())["type"] == "snapshot"
    for other in (b"http://eu.pages.example", b"https://pages.example.evil", b"https://eupages.example"):
        assert await refused(ALL, cookie, (ORIGIN, other)) == 4403


def log_out(user: User) -> None:
    Session.objects.all().delete()


def change_password(user: User) -> None:
    user.set_password("another")
    user.save()


def deactivate(user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)


def delete(user: User) -> None:
    User.objects.filter(pk=user.pk).delete()


def take_permission(user: User) -> None:
    user.user_permissions.remove(Permission.objects.get(codename="view_run"))


def demote(user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_staff=False)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (log_out, 4401),
        (change_password, 4401),
        (deactivate, 4401),
        (delete, 4401),
        (take_permission, 4403),
        (demote, 4403),
    ],
)
async def test_who_may_no_longer_watch_is_disconnected(
    operator: User, monkeypatch: pytest.MonkeyPatch, change: Callable[[User], None], code: int
) -> None:
    monkeypatch.setattr(base, "RECHECK_INTERVAL", 0.1)
    cookie = await sync_to_async(cookie_of)(operator)
    for path in await paths():
        async with opened(path, cookie) as socket:
            await socket.next()
            if path == ALL:
                continue
            await sync_to_async(change)(operator)
            assert await socket.closed() == code


async def test_a_user_whom_another_middleware_found_is_looked_up_again(
    operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No session, as with tokens: the user of the scope counts, as the database knows it by now."""
    from channels.routing import URLRouter

    monkeypatch.setattr(base, "RECHECK_INTERVAL", 0.1)
    one = WebsocketCommunicator(URLRouter(websocket_urlpatterns), ALL)
    one.scope["user"] = operator
    connected, code = await one.connect(timeout=PATIENCE)
    assert connected, code
    socket = Socket(one)
    assert (await socket.next())["type"] == "snapshot"
    await sync_to_async(take_permission)(operator)
    assert await socket.closed() == 4403


@pytest.mark.parametrize("user", [None, AnonymousUser()])
async def test_a_project_that_forgot_the_middleware_lets_nobody_in(user: Any) -> None:
    from channels.routing import URLRouter

    one = WebsocketCommunicator(URLRouter(websocket_urlpatterns), ALL)
    if user is not None:
        one.scope["user"] = user
    assert await one.connect(timeout=PATIENCE) == (False, 4401)
    await one.disconnect(timeout=PATIENCE)
