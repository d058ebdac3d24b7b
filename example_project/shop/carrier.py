"""The parcel carriers, played by this module.

`parcelway` and `alpine-post` answer at once. The booking service of `polar-line` is down for the first
two requests about each parcel. None of them delivers to a PO box.
"""

from __future__ import annotations

import asyncio
import zlib

from django.db.models import F

from .models import Order, Shipment

LATENCY = 0.1  # seconds that a call to a carrier takes
FAILS_FIRST = {"polar-line": 2}  # carrier: how many requests about one parcel it fails before it answers


class CarrierUnavailable(Exception):
    """No answer this time; another try may well succeed."""


class AddressRefused(Exception):
    """The carrier does not deliver there; another try would not change that."""


async def book(order: Order, *, idempotency_key: str) -> str:
    """Books the parcel and returns its tracking number; the same key again gives the same number."""
    await asyncio.sleep(LATENCY)
    shipment, _ = await Shipment.objects.aget_or_create(
        key=idempotency_key, defaults={"order": order, "carrier": order.carrier}
    )
    await Shipment.objects.filter(pk=shipment.pk).aupdate(requests=F("requests") + 1)
    await shipment.arefresh_from_db()

    if order.address.startswith("PO Box"):
        raise AddressRefused(f"{order.carrier} does not deliver to PO boxes")
    if shipment.requests <= FAILS_FIRST.get(order.carrier, 0):
        raise CarrierUnavailable(f"{order.carrier}: 503 service unavailable")
    if not shipment.tracking:
        shipment.tracking = tracking_number(order)
        await shipment.asave(update_fields=["tracking"])
    return shipment.tracking


def tracking_number(order: Order) -> str:
    """Two letters of the carrier, eight digits, the country: `PA48210093DE`."""
    digits = zlib.crc32(order.pk.encode()) % 10**8
    return f"{order.carrier[:2].upper()}{digits:08d}{order.country}"
