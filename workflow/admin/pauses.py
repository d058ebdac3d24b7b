"""Queues that are paused: to add one is to pause it, to delete one is to resume it, by way of the manager."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.contrib.admin import helpers
from django.contrib.postgres.functions import TransactionNow as Now
from django.core.exceptions import BadRequest, ValidationError
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from workflow import viewing, workflows
from workflow.admin import shown
from workflow.admin.base import Base
from workflow.conf import conf
from workflow.manager import arguments
from workflow.models import PausedQueue
from workflow.store.ports import DjangoPort

if TYPE_CHECKING:
    Form = forms.ModelForm[PausedQueue]
else:
    Form = forms.ModelForm  # Django itself has no such parameter


class PauseForm(Form):
    """Refuses what the manager would refuse."""

    reason = forms.CharField(
        required=False, max_length=arguments.MAX_REASON, widget=forms.Textarea(attrs={"rows": 3})
    )

    class Meta:
        model = PausedQueue
        fields = ("queue", "until", "reason")
        help_texts = {"until": "Empty: until somebody resumes it, by deleting this pause."}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        name = self.fields.get("queue")  # absent where it is not to be changed
        if isinstance(name, forms.CharField):
            name.strip = False  # a queue is called by exactly what was given, outer spaces and all

    def validate_unique(self) -> None:
        """Only a pause that is in effect stands in the way of another: one that is over may not be swept yet."""
        queue = self.cleaned_data.get("queue")
        if any(pause.queue == queue for pause in workflows.paused_queues()):
            super().validate_unique()

    def clean_queue(self) -> str:
        try:
            return arguments.ordinary_queue(self.cleaned_data["queue"])
        except ValueError as error:
            raise ValidationError(str(error)) from None

    def clean_until(self) -> datetime | None:
        until: datetime | None = self.cleaned_data["until"]
        try:
            arguments.moment_or_seconds(_aware(until), "until")
        except ValueError as error:
            raise ValidationError(str(error)) from None
        # The admin saves in this very transaction, where the database's now() stands still.
        ((now,),) = DjangoPort().run_now([("SELECT now()", ())])[0]
        if until is not None and until <= now:
            raise ValidationError("This has passed: a pause ends in the future.")
        return until


@admin.register(PausedQueue)
class PausedQueueAdmin(Base):
    form = PauseForm
    list_display = ("shown_queue", "in_effect", "until", "shown_reason", "shown_by", "paused_at")
    list_display_links = ("shown_queue",)
    ordering = ("queue",)
    sortable_by = ()
    view_on_site = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = PausedQueue.objects.using(conf.DATABASE).order_by(*self.ordering)
        holds = Q(until__isnull=True) | Q(until__gt=Now())
        annotated: QuerySet[Any] = rows.annotate(
            in_effect=ExpressionWrapper(holds, output_field=BooleanField())
        )
        return annotated

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        return False

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> PausedQueue | None:
        found: PausedQueue | None = (
            None if "\0" in object_id else super().get_object(request, object_id, from_field)
        )
        return found

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any
    ) -> HttpResponse | None:
        if any("\0" in chosen for chosen in request.POST.getlist(helpers.ACTION_CHECKBOX_NAME)):
            raise BadRequest("what was chosen is no queue's name")
        return super().response_action(request, queryset, *args, **kwargs)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return ["queue", "until", "reason"]
        return ["shown_queue", "in_effect", "until", "reason", "shown_by", "paused_at"]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ["shown_queue", "in_effect", "shown_by", "paused_at"]

    def save_model(self, request: HttpRequest, obj: PausedQueue, form: Any, change: bool) -> None:
        workflows.pause_queue(obj.queue, until=_aware(obj.until), reason=obj.reason, by=viewing.who(request))

    def delete_model(self, request: HttpRequest, obj: PausedQueue) -> None:
        workflows.resume_queue(obj.queue, by=viewing.who(request))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[PausedQueue]) -> None:
        for queue in sorted(queryset.values_list("queue", flat=True)):
            workflows.resume_queue(queue, by=viewing.who(request))

    @admin.display(description="queue")
    def shown_queue(self, pause: PausedQueue) -> str:
        return shown.text(pause.queue)

    @admin.display(description="in effect", boolean=True)
    def in_effect(self, pause: Any) -> bool:
        return bool(pause.in_effect)

    @admin.display(description="reason")
    def shown_reason(self, pause: PausedQueue) -> str:
        return shown.text(pause.reason or None)

    @admin.display(description="by")
    def shown_by(self, pause: PausedQueue) -> str:
        return shown.text(pause.by)


def _aware(moment: datetime | None) -> datetime | None:
    """As the manager wants it; where ``USE_TZ`` is False a form's times are in the current time zone."""
    return moment if moment is None or timezone.is_aware(moment) else timezone.make_aware(moment)
