"""The dashboard of one application: who may come in, which page is meant, and what it needs of the application."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from inspect import isawaitable
from typing import Any

from holdfast import errors
from holdfast.context import Context
from holdfast.dashboard.access import Access, AccessRule, Login
from holdfast.dashboard.asgi import AsgiApp
from holdfast.dashboard.guard import guarded, is_same_origin, knows_host, name_said
from holdfast.dashboard.http import Request, Response, TooLarge
from holdfast.dashboard.redaction import SECRET_KEYS, Redact, Redaction
from holdfast.dashboard.rendering import error_page
from holdfast.dashboard.routes import answer
from holdfast.dashboard.setting import Setting
from holdfast.dashboard.talk import Talk, arun, run
from holdfast.dashboard.visit import Visit
from holdfast.dashboard.wsgi import WsgiApp
from holdfast.errors import ConfigError
from holdfast.foreign import ForeignSource
from holdfast.values.retry import Duration, seconds

log = logging.getLogger("holdfast.dashboard")

FASTEST_REFRESH = 1.0
# What an error of ours means for a browser; the first class that fits decides.
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (errors.JobNotFound, 404),
    (errors.ScheduleNotFound, 404),
    (errors.RunNotFound, 404),
    (errors.Conflict, 409),
    (errors.RunFinished, 409),
    (errors.ConfigError, 400),
    (errors.InvalidPayload, 400),
    (errors.NotSupported, 400),
    (errors.SchemaMissing, 503),
    (errors.SchemaMismatch, 503),
    (errors.DatabaseUnavailable, 503),
    (errors.DatabaseBusy, 503),
)


class Dashboard:
    """Pages to look at the work of an application and to act on it; `asgi` and `wsgi` are the applications to mount.

    access: asked for every request; see `Access`. hosts: the names that the Host header may have; None leaves that to
    the server or framework around it. origins: further origins that forms may come from, such as that of a proxy which
    changes Host. redact, redact_keys: what is hidden of payloads, results, errors and headers. title: what the pages
    are called. refresh: how often a visible page looks again, at least a second.
    """

    def __init__(
        self,
        context: Context,
        foreign: Callable[[], Iterable[ForeignSource]] = tuple,
        *,
        access: AccessRule,
        hosts: Collection[str] | None = None,
        origins: Collection[str] = (),
        redact: Redact | None = None,
        redact_keys: Collection[str] = SECRET_KEYS,
        title: str = "Holdfast",
        refresh: Duration = 2.0,
    ) -> None:
        given: object = access
        if not callable(given):
            rule = "must be a function that takes a request and returns Access(…), or None for those not let in"
            raise ConfigError("access", rule, given)
        for name, said in (("hosts", hosts), ("origins", origins), ("redact_keys", redact_keys)):
            if isinstance(said, str):
                raise ConfigError(name, "must be a collection of texts", said)
        self.access = access
        self.hosts = None if hosts is None else frozenset(map(name_said, hosts))
        self.origins = frozenset(origin.rstrip("/") for origin in origins)
        every = seconds(refresh, "refresh", at_least=FASTEST_REFRESH)
        self.setting = Setting(context, foreign, Redaction(redact_keys, redact), title, every)
        self.setting.away.listen(context.store)

    @cached_property
    def asgi(self) -> AsgiApp:
        """The dashboard as an ASGI application, to mount in Starlette, FastAPI, Litestar, or to serve by itself."""
        return AsgiApp(self)

    @cached_property
    def wsgi(self) -> WsgiApp:
        """The dashboard as a WSGI application, to mount in Flask or Django, or to serve by itself."""
        return WsgiApp(self)

    def respond(self, request: Request) -> Response:
        """Answer a request on the calling thread."""

        def answered() -> Response:
            with _asking():
                allowed = self.access(request)
            if isawaitable(allowed):
                if isinstance(allowed, Coroutine):
                    allowed.close()
                raise ConfigError("access", "must not be async where the dashboard is served as WSGI", self.access)
            return run(self._talk(request, allowed))

        return self._guarded(request, answered)

    async def arespond(self, request: Request) -> Response:
        """The async twin of `respond`; `access` may be async, too."""
        refused = self._refused(request)
        if refused is not None:
            return refused
        try:
            with _asking():
                allowed = self.access(request)
                if isawaitable(allowed):
                    allowed = await allowed
            return await arun(self._talk(request, allowed))
        except Exception as error:
            return self._failed(request, error)

    def _guarded(self, request: Request, answered: Callable[[], Response]) -> Response:
        refused = self._refused(request)
        if refused is not None:
            return refused
        try:
            return answered()
        except Exception as error:
            return self._failed(request, error)

    def _refused(self, request: Request) -> Response | None:
        """Refuse what no page is for, before anything else is asked."""
        if not knows_host(request, self.hosts):
            why = (
                "This name is not one of the dashboard's. Start it with --allow-host NAME, or open it by another name."
            )
            return guarded(Response.text(421, why))
        if request.method not in ("GET", "HEAD", "POST"):
            return guarded(Response.text(405, "Only GET and POST are answered here.", ("allow", "GET, HEAD, POST")))
        if request.method == "POST" and not is_same_origin(request, self.origins):
            why = (
                "This form did not come from a page of the dashboard, as far as the browser says. Behind a proxy that "
                "changes Host, give the proxy's origin (origins=, --allow-origin)."
            )
            return guarded(Response.text(403, why))
        return None

    def _talk(self, request: Request, allowed: Any) -> Talk[Response]:
        """Answer a request, for which somebody may be let in."""
        if allowed is None:
            return _turned_away(self.access)
        if not isinstance(allowed, Access):
            raise ConfigError("access", "must return Access(…) or None", allowed)
        return answer(Visit(self.setting, request, allowed))

    def _failed(self, request: Request, error: Exception) -> Response:
        """Make of an error a page that says no more than it should."""
        if isinstance(error, TooLarge):
            return guarded(Response.text(413, "That is more than a form of the dashboard holds."))
        known = next((status for kind, status in _STATUS if isinstance(error, kind)), None)
        if known is None:
            log.error("a page failed: %s %s", request.method, request.path, exc_info=error)
            return guarded(Response.text(500, "The page failed. The log of the dashboard has the reason."))
        if isinstance(error, ConfigError) and error.field == "access":
            log.error("access could not be asked", exc_info=error)
            return guarded(Response.text(500, "The page failed. The log of the dashboard has the reason."))
        return error_page(self.setting, request, known, self.setting.redaction.text(str(error)))


@contextmanager
def _asking() -> Iterator[None]:
    """Tell what `access` raises apart from our own errors, whose words are for those who were let in."""
    try:
        yield
    except Exception as error:
        raise RuntimeError("access could not be asked") from error


def _turned_away(rule: AccessRule) -> Talk[Response]:
    yield from ()
    if isinstance(rule, Login):
        return guarded(Response.text(401, "A name and a password are needed.", ("www-authenticate", rule.challenge)))
    return guarded(Response.text(403, "You may not look at this dashboard."))
