"""The shop's workflow, step by step in this process: what each kind of order meets, and how it is undone."""

from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings

from example_project.shop import carrier, gateway, webhooks
from example_project.shop.books import audit
from example_project.shop.models import Label, Message, Order, Payment, Shipment
from example_project.shop.orders import KINDS, orders_file
from workflow import InputInvalid, RunHandle, RunStatus, workflows
from workflow.models import Run, RunEvent
from workflow.testing import advance, drain

from .conftest import BRANCH, TakeOrder

pytestmark = pytest.mark.django_db

PATH = "order-fulfillment"


@pytest.fixture(autouse=True)
def no_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "LATENCY", 0)
    monkeypatch.setattr(carrier, "LATENCY", 0)


def dispatch(order: Order) -> RunHandle:
    return workflows.dispatch("order-fulfillment", {"order_id": order.pk})


def pay() -> None:
    gateway.confirm_payments(BRANCH)
    gateway.call_webhook(BRANCH, webhooks.receive)


def fulfil(order: Order) -> RunStatus:
    """Takes an order to its end: the customer pays if they ever do, and time passes as it must."""
    run = dispatch(order)
    drain()
    for _ in range(10):
        pay()
        drain()
        if run.status().run.finished_at:
            break
        advance(settings.SHOP_PAYMENT_TIMEOUT + 1)
        drain()
    return run.status()


def node(status: RunStatus, path: str) -> Any:
    return next(node for node in status.nodes if node.path == f"{PATH}.{path}")


def test_an_order_waits_for_its_payment_and_is_then_shipped(
    take_order: TakeOrder, on_shelf: Callable[[str], int]
) -> None:
    mugs = on_shelf("CUP-STONE-BL")
    order = take_order(("CUP-STONE-BL", 2))
    run = dispatch(order)
    drain()
    assert run.status().run.status == "waiting"
    assert on_shelf("CUP-STONE-BL") == mugs - 2
    assert Payment.objects.get(order=order).status == "pending"
    assert not Label.objects.filter(order=order).exists()

    pay()
    drain()
    status = run.status()
    assert status.run.status == "completed"
    shipment = Shipment.objects.get(order=order)
    assert status.run.state == {
        "order_id": order.pk,
        "total_cents": 3180,
        "wants_mail": True,
        "payment_id": Payment.objects.get(order=order).pk,
        "paid_cents": 3180,
        "label_id": Label.objects.get(order=order).pk,
        "tracking": shipment.tracking,
    }
    assert [check.faults for check in audit(BRANCH, {order.pk: "completed"}) if not check.holds] == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_order_of_each_kind_ends_as_the_file_says(branch: str, take_order: TakeOrder, kind: str) -> None:
    row = next(row for row in orders_file().orders if row.kind == kind)
    order = take_order(*row.lines, **row.model_dump(exclude={"lines", "number"}))
    status = fulfil(order)
    assert status.run.status == (KINDS[kind].ends or "completed")
    faults = [check.faults for check in audit(branch, {order.pk: status.run.status}) if not check.holds]
    # One buyer does not empty the shelf of the last pieces; everything else must add up.
    assert faults == [] or (kind == "last-pieces" and len(faults) == 1)


def test_a_run_needs_an_order_id() -> None:
    with pytest.raises(InputInvalid):
        workflows.dispatch("order-fulfillment", {"order": 17})
    assert not Run.objects.exists()


def test_a_sold_out_order_is_compensated_without_a_charge(take_order: TakeOrder) -> None:
    order = take_order(("TEA-MINT-50", 1), ("POT-COPPER-15", 1))
    status = fulfil(order)
    assert status.run.status == "compensated"
    assert "Copper kettle" in status.run.error["message"]
    assert node(status, "reserve.reserve_stock").attempt == 1, "an empty shelf is no reason to try again"
    assert not Payment.objects.filter(order=order).exists()
    assert not order.stock_moves.exists()


def test_an_order_over_the_card_limit_fails_its_precheck_before_any_charge(take_order: TakeOrder) -> None:
    order = take_order(("BRW-ESPRESSO", 2))
    status = fulfil(order)
    assert status.run.status == "compensated"
    assert (status.run.error["code"], status.run.error["node"]) == ("PRECHECK_FAILED", f"{PATH}.pay")
    assert not Payment.objects.filter(order=order).exists()


def test_a_declined_card_is_asked_once_and_the_goods_go_back(
    take_order: TakeOrder, on_shelf: Callable[[str], int]
) -> None:
    mint = on_shelf("TEA-MINT-50")
    order = take_order(("TEA-MINT-50", 2), card="declined")
    status = fulfil(order)
    assert status.run.status == "compensated"
    assert (status.run.error["code"], status.run.error["node"]) == ("ACTION_FAILED", f"{PATH}.pay.charge")
    assert Payment.objects.get(order=order).requests == 1
    assert on_shelf("TEA-MINT-50") == mint


def test_a_payment_that_never_comes_times_out_and_is_voided(
    take_order: TakeOrder, on_shelf: Callable[[str], int]
) -> None:
    mint = on_shelf("TEA-MINT-50")
    order = take_order(("TEA-MINT-50", 2), card=gateway.NEVER_CONFIRMED)
    run = dispatch(order)
    drain()
    pay()
    advance(settings.SHOP_PAYMENT_TIMEOUT - 1)
    drain()
    assert run.status().run.status == "waiting"
    advance(2)
    drain()
    status = run.status()
    assert status.run.status == "compensated"
    assert (status.run.error["code"], status.run.error["node"]) == ("WAIT_TIMEOUT", f"{PATH}.payment")
    assert Payment.objects.get(order=order).status == "voided"
    assert on_shelf("TEA-MINT-50") == mint


def test_a_payment_that_is_reported_before_the_run_waits_is_not_lost(take_order: TakeOrder) -> None:
    order = take_order()
    run = dispatch(order)
    webhooks.receive(
        {
            "id": "evt-early",
            "type": "payment.succeeded",
            "data": {"order_id": order.pk, "payment_id": 0, "amount_cents": order.total_cents},
        }
    )
    drain()
    assert run.status().run.status == "completed"


def test_a_payment_wakes_its_own_order_only(take_order: TakeOrder) -> None:
    paying = dispatch(take_order())
    other = dispatch(take_order(card=gateway.NEVER_CONFIRMED))
    drain()
    pay()
    drain()
    assert paying.status().run.status == "completed"
    assert other.status().run.status == "waiting"


def test_a_flaky_carrier_is_asked_again_until_it_answers(take_order: TakeOrder) -> None:
    order = take_order(carrier="polar-line")
    status = fulfil(order)
    assert status.run.status == "completed"
    assert node(status, "ship.ship").attempt == 3
    shipment = Shipment.objects.get(order=order)
    assert (shipment.requests, bool(shipment.tracking)) == (3, True)


def test_an_undeliverable_order_is_undone_newest_first(
    take_order: TakeOrder, on_shelf: Callable[[str], int]
) -> None:
    mint = on_shelf("TEA-MINT-50")
    order = take_order(("TEA-MINT-50", 2), address="PO Box 17, 04109 Leipzig")
    status = fulfil(order)
    assert status.run.status == "compensated"
    assert status.run.error["node"] == f"{PATH}.ship.ship"
    undone = RunEvent.objects.filter(run_id=status.run.id, name="action.compensated").order_by("seq")
    nodes = [str(path).removeprefix(f"{PATH}.") for path in undone.values_list("node", flat=True)]
    assert set(nodes[:2]) == {"pack.print_label", "pack.notify_customer"}
    assert nodes[2:] == ["pay.charge", "reserve.reserve_stock"]

    assert Label.objects.get(order=order).torn_up
    assert Payment.objects.get(order=order).status == "voided"
    assert on_shelf("TEA-MINT-50") == mint
    subjects = list(Message.objects.filter(order=order).order_by("id").values_list("subject", flat=True))
    assert subjects == [
        f"Your order {order.pk} is being packed",
        f"We cannot send your order {order.pk}",
    ]


def test_without_a_mail_address_the_notification_is_skipped(take_order: TakeOrder) -> None:
    order = take_order(email="")
    status = fulfil(order)
    assert status.run.status == "completed"
    assert node(status, "pack.notify_customer").status == "skipped"
    assert not Message.objects.filter(order=order).exists()


@pytest.fixture
def gateway_hangs_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first answer of the payment provider is lost on the way. The keys that it was asked with."""
    keys: list[str] = []
    charge = gateway.charge

    def hang_up(order: Order, amount_cents: int, *, idempotency_key: str) -> Payment:
        payment = charge(order, amount_cents, idempotency_key=idempotency_key)
        keys.append(idempotency_key)
        if len(keys) == 1:
            raise ConnectionResetError("the provider hung up")
        return payment

    monkeypatch.setattr(gateway, "charge", hang_up)
    return keys


def test_a_charge_whose_answer_was_lost_is_asked_for_again_and_charged_once(
    take_order: TakeOrder, gateway_hangs_up: list[str]
) -> None:
    order = take_order()
    status = fulfil(order)
    assert status.run.status == "completed"
    assert len(gateway_hangs_up) == 2
    assert len(set(gateway_hangs_up)) == 1
    payment = Payment.objects.get(order=order)
    assert (payment.status, payment.requests) == ("succeeded", 2)
