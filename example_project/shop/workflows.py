"""How the shop fulfils an order, and how it gets back from anywhere on the way.

    reserve  ->  pay  ->  payment  ->  pack  ->  ship
                          (waits)      label and mail side by side

Start one with `workflows.dispatch("order-fulfillment", {"order_id": ...})`. When a step fails for good,
the run undoes what was done, newest first, and ends `compensated`.

Workers may die at any point, so every step answers one question: what if it runs a second time?

* `atomic=True`: it does not. Its rows and the note that it is done are one transaction.
* A call to another company hands over `ctx.idempotency_key`, and they recognise the repetition.
* A compensation first looks whether there is something left to undo.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from pydantic import BaseModel

from workflow import Fatal, Stage, WaitFor, Workflow, action, parallel
from workflow.context import Context

from . import carrier, gateway, stock
from .models import Label, Message, Order

CARD_LIMIT_CENTS = 1_500_00  # above this the shop takes no cards

State = dict[str, Any]


class OrderInput(BaseModel):
    """What a run starts with. The order itself stays in its table; the run's state is kept small."""

    order_id: str


# --- reserve --------------------------------------------------------------------------------------


class Reservation(BaseModel):
    """An action's output merges into the run's state, so later steps find these two keys there."""

    total_cents: int
    wants_mail: bool


@action(input=OrderInput, output=Reservation, atomic=True)
def reserve_stock(order_input: OrderInput) -> Reservation:
    order = Order.objects.get(pk=order_input.order_id)
    try:
        stock.reserve(order)
    except stock.OutOfStock as error:
        raise Fatal(str(error)) from error  # a second attempt would find the same empty shelf
    return Reservation(total_cents=order.total_cents, wants_mail=bool(order.email))


@reserve_stock.compensate
def release_stock(state: State) -> None:
    stock.release(Order.objects.get(pk=state["order_id"]))


# --- pay ------------------------------------------------------------------------------------------


def within_card_limit(state: State) -> None:
    """A precheck that raises fails its node before anything happened, and is not retried."""
    if state["total_cents"] > CARD_LIMIT_CENTS:
        raise ValueError(f"{state['total_cents'] / 100:.2f} EUR is more than the shop takes by card")


@action(timeout=30, backoff=1.0)
def charge(state: State, ctx: Context) -> State:
    order = Order.objects.get(pk=state["order_id"])
    try:
        # The key is the same in every attempt of this action of this run: one order, one payment.
        payment = gateway.charge(order, state["total_cents"], idempotency_key=ctx.idempotency_key)
    except gateway.CardDeclined as error:
        raise Fatal(str(error)) from error
    return {"payment_id": payment.pk}


@charge.compensate
def void_payment(state: State) -> None:
    gateway.void(state["payment_id"])


# --- payment: the run is parked, it holds no worker -----------------------------------------------


def keep_amount(event: Any) -> State:
    """What of the event goes into the state; without `pick=` it would be the whole payload."""
    return {"paid_cents": event.payload["amount_cents"]}


# --- pack -----------------------------------------------------------------------------------------


@action(atomic=True)
def print_label(state: State, ctx: Context) -> State:
    order = Order.objects.get(pk=state["order_id"])
    label = Label.objects.create(order=order, text=f"{order.customer}\n{order.address}\n{order.country}")
    ctx.log("label printed", label=label.pk)
    return {"label_id": label.pk}


@print_label.compensate
def tear_up_label(state: State) -> None:
    Label.objects.filter(pk=state["label_id"]).update(torn_up=True)


def mail(order_id: str, subject: str, *, key: str) -> None:
    """Puts a mail into the outbox; with the key of an earlier one it does nothing."""
    order = Order.objects.get(pk=order_id)
    Message.objects.get_or_create(key=key, defaults={"order": order, "to": order.email, "subject": subject})


# `via="queue"`: a job of its own, so a slow mail server holds up neither the label nor the worker of this
# run.
@action(via="queue", when=lambda state: state["wants_mail"])
def notify_customer(state: State, ctx: Context) -> None:
    mail(state["order_id"], f"Your order {state['order_id']} is being packed", key=ctx.idempotency_key)


@notify_customer.compensate
def apologise(state: State, ctx: Context) -> None:
    """A mail cannot be unsent; what undoes it is another one. A compensation has a key of its own."""
    mail(state["order_id"], f"We cannot send your order {state['order_id']}", key=ctx.idempotency_key)


# --- ship -----------------------------------------------------------------------------------------


class Parcel(BaseModel):
    """What `ship` needs of the state. It is validated before the handler is called."""

    order_id: str
    label_id: int


# Carriers' services are often down for a moment: more attempts than usual, 0.5 s, 1 s, 1.5 s ... apart. A
# run that waits for its next attempt holds no worker either.
@action(input=Parcel, attempts=6, backoff=0.5, timeout=30)
async def ship(parcel: Parcel, ctx: Context) -> State:
    order = await Order.objects.aget(pk=parcel.order_id)
    await ctx.aprogress(30, f"asking {order.carrier}")
    try:
        tracking = await carrier.book(order, idempotency_key=ctx.idempotency_key)
    except carrier.AddressRefused as error:
        raise Fatal(str(error)) from error
    return {"tracking": tracking}


order_fulfillment = Workflow(
    "order-fulfillment",
    version=1,
    input=OrderInput,
    stages=[
        Stage("reserve", actions=[reserve_stock]),
        Stage("pay", precheck=within_card_limit, actions=[charge]),
        Stage(
            "payment",
            wait_for=WaitFor(
                "payment.succeeded",
                # Only the event that was published with this order's id as its correlation.
                correlate="order_id",
                pick=keep_amount,
                # A real shop would be more patient. When nothing comes, the run fails here and goes back.
                timeout=settings.SHOP_PAYMENT_TIMEOUT,
            ),
        ),
        Stage("pack", actions=[parallel(print_label, notify_customer)]),
        Stage("ship", actions=[ship]),
    ],
)
