"""The payment provider, played by this module: a sandbox as real providers have one.

The card decides what happens. `declined` and `insufficient-funds` are refused at once. Any other card is
accepted, and the payment is pending until the customer confirms it with their bank; with `unconfirmed`
they never do. For each confirmed payment the provider calls the shop's webhook, and as every provider
warns, sometimes twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.db.models import F, Q

from .models import Order, Payment

LATENCY = 0.03  # seconds that a call to the provider takes
REFUSED = {"declined": "the card was declined", "insufficient-funds": "the account does not cover the amount"}
NEVER_CONFIRMED = "unconfirmed"


class CardDeclined(Exception):
    """The bank says no; asking again would not change its mind."""


def charge(order: Order, amount_cents: int, *, idempotency_key: str) -> Payment:
    """Asks for a payment. The same key again is the same payment; only `requests` goes up."""
    time.sleep(LATENCY)
    refused = REFUSED.get(order.card)
    payment, created = Payment.objects.get_or_create(
        key=idempotency_key,
        defaults={
            "order": order,
            "amount_cents": amount_cents,
            "card": order.card,
            "status": Payment.Status.DECLINED if refused else Payment.Status.PENDING,
        },
    )
    if not created:
        Payment.objects.filter(pk=payment.pk).update(requests=F("requests") + 1)
    if refused:
        raise CardDeclined(refused)
    return payment


def void(payment_id: int) -> None:
    """Cancels a payment, confirmed or not; the customer gets the money back. Twice is the same as once."""
    time.sleep(LATENCY)
    Payment.objects.filter(
        pk=payment_id, status__in=[Payment.Status.PENDING, Payment.Status.SUCCEEDED]
    ).update(status=Payment.Status.VOIDED)


def confirm_payments(branch: str) -> int:
    """The customers of a branch confirm what is pending, but for those who never do. Returns how many did."""
    pending = Payment.objects.filter(order__branch=branch, status=Payment.Status.PENDING)
    return pending.exclude(card=NEVER_CONFIRMED).update(status=Payment.Status.SUCCEEDED)


def call_webhook(branch: str, webhook: Callable[[dict[str, Any]], None]) -> int:
    """Tells the shop of confirmed payments that it has not heard of, and of every third one again.

    A payment counts as announced once `webhook` has returned; one that raises is called again. Returns
    the number of calls.
    """
    due = Payment.objects.annotate(third=F("id") % 3).filter(
        Q(announced=0) | Q(announced=1, third=0), order__branch=branch, status=Payment.Status.SUCCEEDED
    )
    calls = 0
    for payment in due.order_by("id"):
        webhook(
            {
                "id": f"evt-{payment.pk}",  # the same for both calls: this is how the shop knows a repetition
                "type": "payment.succeeded",
                "data": {
                    "order_id": payment.order_id,
                    "payment_id": payment.pk,
                    "amount_cents": payment.amount_cents,
                },
            }
        )
        Payment.objects.filter(pk=payment.pk).update(announced=F("announced") + 1)
        calls += 1
    return calls
