"""Lists of jobs in Django's admin that stay quick with millions of rows: nothing counts or reads all of them.

A list is by id, which is by age. What it looks at are the newest rows, as on the pages of the dashboard; of dead
letters, the newest of those. Jobs by their ids are found whatever their age.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any, get_args

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator

from holdfast.admin import Filter, finished_ids
from holdfast.admin.looking import WINDOW
from holdfast.errors import ConfigError
from holdfast.values.rows import Outcome

# How many rows the pages of one list hold; who needs more narrows the list down.
MOST_LISTED = 1_000
# Among how many of the newest rows names for the filters are looked for.
NAMES_AMONG = 1_000
OUTCOMES = get_args(Outcome)
_BEGINNING = re.compile(r"[0-9a-f]{8}[0-9a-f-]{0,28}", re.IGNORECASE)


class BoundedPaginator(Paginator):
    """Pages over the first thousand rows of a list; it reads that many ids, and never counts."""

    object_list: Any

    @cached_property
    def count(self) -> int:
        return len(self.object_list.values_list("pk")[:MOST_LISTED])

    def page(self, number: Any) -> Any:
        self.object_list = self.object_list[:MOST_LISTED]
        return super().page(number)


class NewestRows(ChangeList):
    """A list that looks at the newest rows, unless an index finds what is asked for."""

    def get_queryset(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        found = super().get_queryset(request, *args, **kwargs)
        if self.params.get("state") in OUTCOMES and not self._is_indexed():
            # By their ids alone: beside an outcome, a database may read all rows that ended so.
            return self.root_queryset.filter(pk__in=self._over()).order_by("-pk")
        horizon = None if self._is_indexed() else self._horizon()
        return found if horizon is None else found.filter(pk__gte=horizon)

    def _is_indexed(self) -> bool:
        return id_range(self.query) is not None

    def _horizon(self) -> str | None:
        """Return the id of the oldest row to look at; None where all are looked at."""
        ids = self.model._default_manager.order_by("-pk").values_list("pk", flat=True)
        return next(iter(ids[WINDOW - 1 : WINDOW]), None)

    def _over(self) -> list[str]:
        """Name the jobs of one outcome that the pages show."""
        from holdfast.django import hf

        queue, kind = (self.params.get(name) or None for name in ("queue", "kind"))
        try:
            wanted = Filter((self.params["state"],), queue, kind, self.query.strip() or None)
        except ConfigError:
            # Nothing has a name that long.
            return []
        return hf.store.run(finished_ids(wanted, MOST_LISTED, WINDOW))

    @property
    def is_cut(self) -> bool:
        """Whether there may be more rows than the pages show."""
        return bool(self.result_count >= MOST_LISTED)


def id_range(typed: str) -> tuple[str, str] | None:
    """Read an id, or eight digits or more of its beginning, as the first and last id that it may mean."""
    word = typed.strip().lower()
    if not _BEGINNING.fullmatch(word):
        return None
    digits = word.replace("-", "")
    return tuple(digits.ljust(32, last)[:32] for last in "0f")  # type: ignore[return-value]


class _Named(SimpleListFilter):
    """A filter by a name; offered are those of the code, and those among the newest rows."""

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        newest = model_admin.model._default_manager.order_by("-pk").values_list(self.parameter_name, flat=True)
        names = {*self.known(), *newest[:NAMES_AMONG]} | ({self.value()} if self.value() else set())
        return [(name, name) for name in sorted(names)]

    def queryset(self, request: Any, queryset: Any) -> Any:
        return queryset.filter(**{self.parameter_name: self.value()}) if self.value() else queryset

    def known(self) -> Iterable[str]:
        raise NotImplementedError


class QueueFilter(_Named):
    title = parameter_name = "queue"

    def known(self) -> Iterable[str]:
        from holdfast.django import hf

        handlers = hf.handlers.values()
        return {queue for one in handlers for queue in (one.options.queue, *one.serves)} | set(hf.context.queues)


class KindFilter(_Named):
    title = parameter_name = "kind"

    def known(self) -> Iterable[str]:
        from holdfast.django import hf

        return hf.handlers


class StateFilter(SimpleListFilter):
    """A filter by state; of finished jobs that is their outcome."""

    title = parameter_name = "state"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        return [(state, state) for state in model_admin.states]

    def queryset(self, request: Any, queryset: Any) -> Any:
        return queryset.filter(**{self.column(queryset): self.value()}) if self.value() else queryset

    def column(self, queryset: Any) -> str:
        return "outcome" if hasattr(queryset.model, "outcome") else "state"
