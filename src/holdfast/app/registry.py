"""Registries: handlers without a database, for libraries and for modules, until an application includes them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, cast

from holdfast.app.registering import Declares
from holdfast.app.running import DeclaresWorkflows
from holdfast.errors import ConfigError
from holdfast.handlers import Application, Handler, vacant
from holdfast.resources import Hooks
from holdfast.values.failure import type_name, words
from holdfast.values.options import StoreOptions, kind_name
from holdfast.values.spelling import spelt


class Includes(Declares):
    """What takes in the handlers of registries."""

    @spelt
    def include(self, registry: Registry, *, prefix: str | None = None) -> None:
        """Take in the handlers, workflows and hooks of a registry: `hf.include(billing.registry)`.

        prefix: what their kinds begin with, instead of what the registry says. From then on they belong to this
        application: a registry is included once.
        Raises: ConfigError for a kind that has a handler already; nothing is taken in then.
        """
        given = _registry(registry).opened(self)
        before = registry.prefix if prefix is None else prefix
        taken = {kind_name(before + kind): handler for kind, handler in given.items()}
        rule = "each kind has one handler, so give these others: hf.include(…, prefix=…)"
        for kind in sorted(taken):
            vacant(self.handlers, kind, taken[kind].fn, rule=rule)
        for hook in registry.start_hooks.all:
            self._start_hooks.refuse_double(hook)
        for hook in registry.start_hooks.all:
            self._start_hooks.add(hook)
        for kind, handler in taken.items():
            handler.join(cast(Application, self), kind)
            self.handlers[kind] = handler
        registry.close(self)


class Registry(DeclaresWorkflows, Includes):
    """Handlers, bulk handlers, workflows and hooks without a database, for `hf.include(registry)`.

    prefix: what their kinds begin with in the application, as "billing.". Before a registry is included, its handlers
    can be called and tested, but enqueue nothing. `hf.receive`, schedules, queues and routes are the application's own.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._declared: dict[str, Handler[..., Any]] = {}
        self._start_hooks = Hooks()
        self._includer: object = None

    def __repr__(self) -> str:
        return f"<Registry of {', '.join(self._declared) or 'nothing'}>"

    @property
    def handlers(self) -> dict[str, Handler[..., Any]]:  # type: ignore[override]
        """What was registered, by kind. Raises: ConfigError once it was included."""
        if self._includer is not None:
            rule = f"is included in {self._includer!r} already; register its handlers before that"
            raise ConfigError("registry", rule, self)
        return self._declared

    # What `include` and handlers ask

    @property
    def start_hooks(self) -> Hooks:
        return self._start_hooks

    def opened(self, includer: object) -> dict[str, Handler[..., Any]]:
        """Return what is to be included. Raises: ConfigError, where that was done, or would be in itself."""
        if self._includer is not None:
            raise ConfigError("include", f"a registry is included once; this one is in {self._includer!r}", self)
        if includer is self:
            raise ConfigError("include", "a registry cannot include itself", self)
        return self._declared

    def close(self, includer: object) -> None:
        self._includer = includer

    @property
    def options(self) -> StoreOptions:
        return self._refuse()

    def enqueue_bound(self, *_: Any) -> NoReturn:
        self._refuse()

    async def aenqueue_bound(self, *_: Any) -> NoReturn:
        self._refuse()

    def start_runs(self, *_: Any) -> NoReturn:
        self._refuse()

    async def astart_runs(self, *_: Any) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        rule = "no application has included it, so nothing can be enqueued or started; call hf.include(registry) first"
        raise ConfigError("registry", rule, self)


def _registry(given: object) -> Registry:
    if not isinstance(given, Registry):
        raise ConfigError("include", "takes a Registry, as in hf.include(billing.registry)", given)
    return given


def autodiscover(packages: tuple[str, ...], module: str) -> list[str]:
    """Import every module of this name below packages, and what is below it where it is a package itself.

    Raises: ConfigError for a package that is not there, and for a module that fails when it is imported.
    """
    if not packages or not all(packages):
        raise ConfigError("autodiscover", 'must be given names of packages, as in hf.autodiscover("shop")', packages)
    if not module.isidentifier():
        raise ConfigError("module", "must be the name of a module, as jobs", module)
    found = [name for package in packages for name in _named(package, _path_of(package), module)]
    for name in found:
        _import(name)
    return found


def _path_of(package: str) -> list[str]:
    path = getattr(_import(package), "__path__", None)
    if path is None:
        raise ConfigError("autodiscover", "must be a package, which has modules below it", package)
    return list(path)


def _named(package: str, path: list[str], wanted: str, within: bool = False) -> Iterator[str]:
    """Yield the names of the modules, without importing any: their packages may be none of ours to load."""
    for found in sorted(pkgutil.iter_modules(path), key=lambda one: one.name):
        name, inside = f"{package}.{found.name}", within or found.name == wanted
        if inside:
            yield name
        if found.ispkg:
            yield from _named(name, [str(Path(each) / found.name) for each in path], wanted, inside)


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ConfigError:
        raise
    except Exception as error:
        rule = f"importing {name} failed: {type_name(error)}: {words(error)}"
        raise ConfigError("autodiscover", rule, name) from error
