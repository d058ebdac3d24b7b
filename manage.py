#!/usr/bin/env python
"""Django's command line for the example project: ``python manage.py help``."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError:
        sys.exit("manage.py: Django is missing here; run 'make venv' and use .venv/bin/python manage.py")

    from example_project.database import unavailable

    try:
        execute_from_command_line(sys.argv)
    except Exception as error:
        # A database that cannot be had is a matter for the person at the keyboard, not a fault to trace.
        reason = unavailable(error)
        if reason is None:
            raise
        sys.exit(f"manage.py: {reason}")


if __name__ == "__main__":
    main()
