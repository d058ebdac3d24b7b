"""`manage.py shop_login`: an account for looking at the shop's dashboard, with a password of the moment."""

from __future__ import annotations

import secrets
from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand
from django.db import transaction

NAME = "shop"


class Command(BaseCommand):
    help = f'Gives the account "{NAME}" a new password, makes it if need be, and prints both.'

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--address", help="where the pages are, to be printed as well")

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        # Never one that stands in a file: whoever can reach the port would know it.
        password = secrets.token_urlsafe(9)
        user, _ = User.objects.get_or_create(username=NAME)
        user.is_staff = user.is_superuser = user.is_active = True
        user.set_password(password)
        user.save()
        if options["address"]:
            self.stdout.write(f"The dashboard: {options['address']}")
        self.stdout.write(f"Log in as {NAME} with the password {password}")
