"""The carriers keep the promises that the workflow relies on."""

import pytest
from asgiref.sync import async_to_sync

from example_project.shop import carrier
from example_project.shop.models import Shipment

from .conftest import TakeOrder

pytestmark = pytest.mark.django_db
book = async_to_sync(carrier.book)


def test_one_key_is_one_parcel_with_one_number(take_order: TakeOrder) -> None:
    order = take_order()
    tracking = book(order, idempotency_key="k")
    assert tracking
    assert book(order, idempotency_key="k") == tracking
    [shipment] = Shipment.objects.filter(order=order)
    assert (shipment.tracking, shipment.requests) == (tracking, 2)


def test_polar_line_answers_the_third_request(take_order: TakeOrder) -> None:
    order = take_order(carrier="polar-line")
    for _ in range(2):
        with pytest.raises(carrier.CarrierUnavailable):
            book(order, idempotency_key="k")
        assert not Shipment.objects.exclude(tracking="").filter(order=order).exists()
    assert book(order, idempotency_key="k").startswith("PO")


def test_no_carrier_delivers_to_a_po_box(take_order: TakeOrder) -> None:
    order = take_order(address="PO Box 17, 04109 Leipzig")
    with pytest.raises(carrier.AddressRefused):
        book(order, idempotency_key="k")
    assert not Shipment.objects.exclude(tracking="").filter(order=order).exists()
