"""Filters that an index answers. Their parameters are the only ones that a list accepts."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, ClassVar
from uuid import UUID

from django.contrib.admin import ModelAdmin, SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest

from workflow import states
from workflow.admin import shown
from workflow.admin.paging import values
from workflow.sql import lists as sql


class Filter(SimpleListFilter):
    """One that refuses what it does not offer, instead of showing everything."""

    open_ended: ClassVar[bool] = False
    """Whether any text is a value, offered or not."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        known = (
            "\0" not in value if self.open_ended else value in {str(key) for key, _ in self.lookup_choices}
        )
        if not known:
            raise IncorrectLookupParameters(f"{self.parameter_name} cannot be {value!a:.80}")
        return self.narrow(queryset, value)

    def narrow(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        raise NotImplementedError


class WorkflowFilter(Filter):
    """Along ``workflow_run_workflow``. A name that is not offered, because there are many, works as well."""

    title = "workflow"
    parameter_name = "workflow__exact"
    open_ended = True

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Iterable[tuple[str, str]]:
        return [(name, shown.text(name)) for name in values(sql.RUN_WORKFLOWS)]

    def has_output(self) -> bool:
        return True

    def narrow(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        return queryset.filter(workflow=value)


class RunStatusFilter(Filter):
    """Along ``workflow_run_status``."""

    title = "status"
    parameter_name = "status__exact"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Iterable[tuple[str, str]]:
        return [(status, status) for status in states.RUN_STATUSES]

    def narrow(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        return queryset.filter(status=value)


class CreatedFilter(Filter):
    """Along the primary key: ids begin with the time at which they were made."""

    title = "created"
    parameter_name = "created"
    _SECONDS: ClassVar = {"hour": 3600, "day": 86_400, "week": 7 * 86_400, "month": 30 * 86_400}
    _TITLES: ClassVar = {
        "hour": "in the last hour",
        "day": "in the last 24 hours",
        "week": "in the last 7 days",
        "month": "in the last 30 days",
    }

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Iterable[tuple[str, str]]:
        return list(self._TITLES.items())

    def narrow(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        since = int((time.time() - self._SECONDS[value]) * 1000)
        return queryset.filter(pk__gte=UUID(int=since << 80))


class _WithinRun(Filter):
    """For nodes, whose status has no index on purpose: offered among those of one run only."""

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Iterable[tuple[str, str]]:
        if not _is_uuid(request.GET.get("q", "").strip()):
            return []
        return [(value, value) for value in self.choices_within()]

    def has_output(self) -> bool:
        # Also when there is nothing to choose: or a value would be taken for a lookup of the table.
        return True

    def choices_within(self) -> Iterable[str]:
        raise NotImplementedError


class NodeStatusFilter(_WithinRun):
    title = "status (within a run)"
    parameter_name = "status__exact"

    def choices_within(self) -> Iterable[str]:
        return states.NODE_STATUSES

    def narrow(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        return queryset.filter(status=value)


class NodeKindFilter(_WithinRun):
    title = "kind (within a run)"
    parameter_name = "kind__exact"

    def choices_within(self) -> Iterable[str]:
        return states.NODE_KINDS

    def narrow(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        return queryset.filter(kind=value)


class ParkedFilter(Filter):
    """Along ``workflow_node_wait``."""

    title = "waiting for an event"
    parameter_name = "parked"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Iterable[tuple[str, str]]:
        return [("yes", "yes")]

    def narrow(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        return queryset.filter(wait_event__isnull=False)


class QueueFilter(Filter):
    """Along ``workflow_job_due``, for jobs that are not leased; the others are few."""

    title = "queue"
    parameter_name = "queue__exact"
    open_ended = True

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Iterable[tuple[str, str]]:
        return [(name, shown.text(name)) for name in values(sql.DUE_QUEUES)]

    def has_output(self) -> bool:
        return True

    def narrow(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        return queryset.filter(queue=value)


class JobStateFilter(Filter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Iterable[tuple[str, str]]:
        return [("leased", "leased"), ("due", "due"), ("later", "due later")]

    def narrow(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        if value == "leased":
            return queryset.filter(lease_token__isnull=False)
        free = queryset.filter(lease_token__isnull=True)
        return free.filter(available_at__lte=Now()) if value == "due" else free.filter(available_at__gt=Now())


class AliveFilter(Filter):
    title = "alive"
    parameter_name = "alive"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> Iterable[tuple[str, str]]:
        return [("yes", "yes"), ("no", "no")]

    def narrow(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        return queryset.filter(alive=value == "yes")


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
