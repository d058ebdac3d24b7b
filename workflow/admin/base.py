"""The base of our admins: read-only, exact searches, lists that load what they show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from django.contrib import admin
from django.contrib.admin import helpers
from django.core.exceptions import BadRequest
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from workflow import viewing
from workflow.admin import shown
from workflow.admin.filters import Filter
from workflow.admin.paging import CappedPaginator, OrderedChangeList
from workflow.conf import conf

if TYPE_CHECKING:
    Base = admin.ModelAdmin[Any]
else:
    Base = admin.ModelAdmin  # Django itself has no such parameter


class ReadOnlyAdmin(Base):
    """Shows rows. ``loaded`` are the fields that a list reads; a row's own page reads them all.

    What is shown is masked first, in ``masked``. Nothing is added, changed or deleted here.
    """

    loaded: ClassVar[tuple[str, ...]]
    list_filter: ClassVar[tuple[type[Filter], ...]] = ()
    list_per_page = 50
    list_max_show_all = 200
    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    ordering = ("-pk",)
    search_fields = ("pk",)  # shows the search box; what is searched is for ``wanted`` to say
    view_on_site = False
    actions_on_bottom = False
    list_display_links: Any = None

    class Media:
        css = {"all": ["workflow/admin/admin.css"]}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = self.rows().only(*self.loaded)
        return rows.order_by(*self.ordering)

    def rows(self) -> QuerySet[Any]:
        """All rows with all their columns."""
        rows: QuerySet[Any] = self.model._default_manager.using(conf.DATABASE)
        return rows

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Model | None:
        """The row of that id with all its columns, masked; None when there is none, it is no id, or it is of a run
        that this user may not see.
        """
        try:
            row: Model | None = self.rows().filter(pk=UUID(object_id)).first()
        except ValueError:
            return None
        if row is None:
            return None
        run_id = self.run_of(row)
        if run_id is not None and not viewing.may_view(request.user, run_id):
            return None
        self.mask(row)
        return row

    def run_of(self, row: Any) -> UUID | None:
        """The run that a row belongs to, if any."""
        return getattr(row, "run_id", None)

    def mask(self, row: Any) -> None:
        """Replaces in ``row``, which is never saved, what a person must not see."""
        raise NotImplementedError

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Our filters' parameters and nothing else: a lookup into a payload would answer guesses about it."""
        return lookup in {offered.parameter_name for offered in self.list_filter}

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[OrderedChangeList]:
        return OrderedChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """What the whole term names exactly."""
        term = search_term.strip()
        return (queryset.filter(self.wanted(term)) if term else queryset), False

    def wanted(self, term: str) -> Q:
        """Which rows a term of the search box means, by columns that have an index."""
        raise NotImplementedError

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Without the sections that have nothing to show for this row."""
        return [
            section for section in self.fieldsets or () if obj is None or self.has_section(section[0], obj)
        ]

    def has_section(self, title: Any, obj: Any) -> bool:
        """Whether the section of that title has anything to show."""
        return title != "Error" or obj.error is not None

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        return [field for _, section in self.get_fieldsets(request, obj) for field in section["fields"]]

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any
    ) -> HttpResponse | None:
        for chosen in request.POST.getlist(helpers.ACTION_CHECKBOX_NAME):
            if as_uuid(chosen) is None:
                raise BadRequest("what was chosen is no id")
        return super().response_action(request, queryset, *args, **kwargs)

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> TemplateResponse | HttpResponse:
        if obj is not None:
            context.update(self.more(request, obj), subtitle=shown.text(obj))
        return super().render_change_form(request, context, add, change, form_url, obj)

    def more(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        """What a row's page shows besides its fields."""
        return {}


def as_uuid(text: str) -> UUID | None:
    """The id that a text is, or None."""
    try:
        return UUID(text)
    except ValueError:
        return None
