"""What `make serve` starts: the account that it prints opens the pages."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

pytestmark = pytest.mark.django_db


def printed(*arguments: str) -> str:
    out = StringIO()
    call_command("shop_login", *arguments, stdout=out)
    return out.getvalue()


def test_the_printed_account_opens_the_dashboard() -> None:
    said = printed("--address", "http://127.0.0.1:8000/dashboard/")
    assert said.startswith("The dashboard: http://127.0.0.1:8000/dashboard/\n")
    found = re.search(r"Log in as (\w+) with the password (\S+)\n", said)
    assert found
    client = Client()
    assert client.login(username=found[1], password=found[2])
    assert client.get("/", follow=True).redirect_chain == [("/dashboard/", 302)]
    assert client.get("/dashboard/").status_code == 200
    assert client.get("/admin/workflow/run/").status_code == 200


def test_every_start_has_a_password_of_its_own() -> None:
    first, second = printed(), printed()
    assert first != second
    assert User.objects.count() == 1
