"""The shop's books in Django's admin, to look at."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from .models import Order, OrderLine, Payment, Product, Shipment


class LineInline(admin.TabularInline):  # type: ignore[type-arg]  # Django itself has no such parameter
    model = OrderLine
    extra = 0


class PaymentInline(admin.TabularInline):  # type: ignore[type-arg]
    model = Payment
    extra = 0


class ShipmentInline(admin.TabularInline):  # type: ignore[type-arg]
    model = Shipment
    extra = 0


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["id", "branch", "customer", "kind", "total", "placed_at"]
    list_filter = ["branch", "kind"]
    search_fields = ["id", "customer"]
    inlines = [LineInline, PaymentInline, ShipmentInline]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Order]:
        return super().get_queryset(request).prefetch_related("lines")

    @admin.display(description="total (EUR)")
    def total(self, order: Order) -> str:
        return f"{order.total_cents / 100:.2f}"


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["sku", "branch", "name", "quantity"]
    list_filter = ["branch"]
    search_fields = ["sku", "name"]
