"""Names of queues, kinds and routes that nobody knows: most of them are misspelt, so commands warn of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from holdfast import admin, lines
from holdfast.cli.shared import did_you_mean
from holdfast.store import Store
from holdfast.values.pauses import Scope
from holdfast.values.reserved import is_route, route_of
from holdfast.worker import registry

if TYPE_CHECKING:
    from holdfast.app import Holdfast

_LIVE = ("pending", "waiting", "leased")


def declared_queues(app: Holdfast) -> set[str]:
    """Name the queues that an application's code speaks of: declared ones, those of its handlers and of its routes."""
    handled = {handler.options.queue for handler in app.handlers.values()}
    return handled | set(app.context.queues) | {route.queue for route in app.context.routes}


def unknown(store: Store, names: Iterable[tuple[Scope, str]], declared: Collection[str] = ()) -> list[str]:
    """Warn of names that no worker knows and that no live job has; `declared` are queues that are known all the same.

    Ask before jobs are added or moved: they would count.
    """
    asked = [(scope, name) for scope, name in names if scope == "kind" or name not in declared]
    if not asked:
        return []
    infos = [worker.info for worker in store.run(registry.workers()) if not worker.is_gone]
    served = {str(name) for info in infos for name in info.get("queues", ())}
    known = {
        "queue": served | set(store.run(lines.stored())) | set(declared),
        "kind": {str(name) for info in infos for name in info.get("kinds", ())},
    }
    return [
        _warning(scope, name, known[scope])
        for scope, name in asked
        if name not in known[scope] and not _has_jobs(store, scope, name)
    ]


def _warning(scope: Scope, name: str, known: Collection[str]) -> str:
    if scope == "queue" and is_route(name):
        said = f"no worker serves route {route_of(name)}, and there are no events for it"
        name, known = route_of(name), [route_of(one) for one in known if is_route(one)]
    else:
        said = f"no worker {'serves' if scope == 'queue' else 'handles'} {scope} {name}, and there are no jobs of it"
    hint = did_you_mean(name, sorted(known))
    return f"{said}; {hint}" if hint else said


def _has_jobs(store: Store, scope: Scope, name: str) -> bool:
    live = admin.Filter(_LIVE, queue=name) if scope == "queue" else admin.Filter(_LIVE, kind=name)
    return bool(store.run(admin.list_jobs(live, limit=1)))
