"""The payment provider keeps the promises that the workflow relies on."""

from typing import Any

import pytest

from example_project.shop import gateway
from example_project.shop.models import Payment

from .conftest import BRANCH, TakeOrder

pytestmark = pytest.mark.django_db


def test_one_key_is_one_charge_however_often_it_is_asked_for(take_order: TakeOrder) -> None:
    order = take_order()
    first = gateway.charge(order, 3720, idempotency_key="k")
    again = gateway.charge(order, 3720, idempotency_key="k")
    assert first.pk == again.pk
    [payment] = Payment.objects.filter(order=order)
    assert (payment.status, payment.amount_cents, payment.requests) == ("pending", 3720, 2)


@pytest.mark.parametrize("card", sorted(gateway.REFUSED))
def test_a_refused_card_is_declined_every_time(take_order: TakeOrder, card: str) -> None:
    order = take_order(card=card)
    for _ in range(2):
        with pytest.raises(gateway.CardDeclined):
            gateway.charge(order, 3720, idempotency_key="k")
    [payment] = Payment.objects.filter(order=order)
    assert payment.status == "declined"


def test_customers_confirm_except_those_who_never_do(take_order: TakeOrder) -> None:
    pays = gateway.charge(take_order(), 100, idempotency_key="a")
    never = gateway.charge(take_order(card=gateway.NEVER_CONFIRMED), 100, idempotency_key="b")
    assert gateway.confirm_payments(BRANCH) == 1
    pays.refresh_from_db()
    never.refresh_from_db()
    assert (pays.status, never.status) == ("succeeded", "pending")


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_payment_is_voided_whether_confirmed_or_not(take_order: TakeOrder, confirmed: bool) -> None:
    payment = gateway.charge(take_order(), 100, idempotency_key="a")
    if confirmed:
        gateway.confirm_payments(BRANCH)
    gateway.void(payment.pk)
    gateway.void(payment.pk)
    payment.refresh_from_db()
    assert payment.status == "voided"
    assert gateway.confirm_payments(BRANCH) == 0


def test_the_webhook_is_called_for_each_confirmed_payment_and_for_every_third_one_again(
    take_order: TakeOrder,
) -> None:
    payments = [gateway.charge(take_order(), 100, idempotency_key=f"k{n}") for n in range(9)]
    calls: list[dict[str, Any]] = []
    assert gateway.call_webhook(BRANCH, calls.append) == 0, "nothing is confirmed yet"
    gateway.confirm_payments(BRANCH)
    while gateway.call_webhook(BRANCH, calls.append):
        pass
    told = [call["id"] for call in calls]
    assert len(told) == 12
    assert set(told) == {f"evt-{payment.pk}" for payment in payments}
    assert calls[0]["type"] == "payment.succeeded"
    assert calls[0]["data"] == {
        "order_id": payments[0].order_id,
        "payment_id": payments[0].pk,
        "amount_cents": 100,
    }


def test_a_webhook_that_fails_is_called_again(take_order: TakeOrder) -> None:
    gateway.charge(take_order(), 100, idempotency_key="a")
    gateway.confirm_payments(BRANCH)

    def broken(event: dict[str, Any]) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        gateway.call_webhook(BRANCH, broken)
    assert gateway.call_webhook(BRANCH, lambda event: None) == 1
