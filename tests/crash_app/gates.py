"""Gates that do what the run's input tells them to: `{"gate": "sleep"}`."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

from django.db import connection

LONG = 30


def plain(state: dict[str, Any]) -> bool:
    match state.get("gate"):
        case "sleep":
            time.sleep(LONG)
        case "exit":
            raise SystemExit(1)
        case "begin":
            with connection.cursor() as cursor:
                cursor.execute("BEGIN")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(LONG)
    return True


async def asynchronous(state: dict[str, Any]) -> bool:
    match state.get("gate"):
        case "sleep":
            await asyncio.sleep(LONG)
        case "cancelled":
            raise asyncio.CancelledError
    return True
