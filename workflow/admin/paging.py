"""Lists over tables of any size: a count that stops, an order that has an index, and no keys but ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db import connections
from django.utils.functional import cached_property

from workflow import viewing
from workflow.conf import conf
from workflow.sql import lists as sql

CAP: Final = 10_000
"""Rows that a list pages through. Whoever looks further wants a filter, and OFFSET costs what it skips."""
MOST_VALUES: Final = 200
"""Choices that a filter offers, at most."""


if TYPE_CHECKING:
    _Paginator = Paginator[Any]
else:
    _Paginator = Paginator  # Django itself has no such parameter


class CappedPaginator(_Paginator):
    """Counts to CAP and no further."""

    @cached_property
    def _found(self) -> int:
        rows: Any = self.object_list
        found: int = rows.order_by().values("pk")[: CAP + 1].count()
        return found

    @cached_property
    def count(self) -> int:
        return min(self._found, CAP)

    @property
    def capped(self) -> bool:
        """Whether there is more than the pages show."""
        return self._found > CAP

    @property
    def estimate(self) -> int | None:
        """About how many rows the whole table has; None where PostgreSQL has not looked yet."""
        rows: Any = self.object_list
        with connections[conf.DATABASE].cursor() as cursor:
            cursor.execute(sql.ESTIMATE, [rows.model._meta.db_table])
            (found,) = cursor.fetchone()
        return found if found is not None and found > 0 else None


class OrderedChangeList(ChangeList):
    """In the order of the ids, whatever the query string asks for: no other order has an index."""

    def get_results(self, request: Any) -> None:
        super().get_results(request)
        self.result_list = self._viewable(request.user)
        if self.paginator.capped:
            # The search box would show the bound as if it were the number of rows; the page's end says what it is.
            self.full_result_count = self.result_count

    def _viewable(self, user: Any) -> Any:
        """The page's rows, without those of runs that this user may not see."""
        if conf.CAN_VIEW_RUN is None:
            return self.result_list
        model_admin: Any = self.model_admin
        rows: Any = [(model_admin.run_of(row), row) for row in self.result_list]
        seen = viewing.viewable(user, {run_id for run_id, _ in rows if run_id is not None})
        return [row for run_id, row in rows if run_id is None or run_id in seen]

    def get_ordering(self, request: Any, queryset: Any) -> list[Any]:
        return list(self.model_admin.get_ordering(request))

    def get_ordering_field_columns(self) -> dict[Any, Any]:
        return {}


def values(statement: str) -> list[str]:
    """The distinct values that one of the statements in `workflow.sql.lists` finds."""
    with connections[conf.DATABASE].cursor() as cursor:
        cursor.execute(statement, [MOST_VALUES])
        return [row[0] for row in cursor.fetchall()]
