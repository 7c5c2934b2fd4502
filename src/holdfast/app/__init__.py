"""The object that an application makes once: `Holdfast`, put together from faces, one file for each concern.

A face checks what it is given, makes flows of the rooms below and runs them on a store; it holds no database semantics.
What a worker does belongs to `worker`, what people do by hand to `admin` and `cli`.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext, suppress
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from holdfast.app.dispatching import Dispatches
from holdfast.app.publishing import Publishes
from holdfast.app.receiving import Receives
from holdfast.app.registering import JobDecorator as JobDecorator
from holdfast.app.registry import Includes, autodiscover
from holdfast.app.registry import Registry as Registry
from holdfast.app.running import Runs
from holdfast.errors import ConfigError
from holdfast.store import founding, migrate
from holdfast.values.options import Part, WorkerKeywords, only_options, switch
from holdfast.values.retry import Duration
from holdfast.values.spelling import spelt

if TYPE_CHECKING:
    from holdfast.app.lifespan import Lifespan, OwnLifespan
    from holdfast.dashboard import Dashboard
    from holdfast.dashboard.access import AccessRule
    from holdfast.dashboard.redaction import Redact
    from holdfast.foreign import Foreign
    from holdfast.worker import Served, Worker


class Holdfast(Publishes, Receives, Runs, Dispatches, Includes):
    """Durable work in the database at `url` (HOLDFAST_URL when left out).

    prefix, schema (PostgreSQL): of the tables' names. payload_limit: bytes that a job's arguments may take.
    pool_size: connections at most. connect_timeout: for each of them. busy_timeout: how long SQLite waits for its lock.
    notify, listen_url (PostgreSQL): whether workers hear of new jobs at once, and on which address they listen.
    prepare: False behind a PgBouncer that keeps no prepared statements. buckets: how many parts `key` is hashed into.
    audit_retention: how long the lines about what was done by hand are kept, 90 days by default.
    event_source: what published events say of where they come from, "holdfast" by default.
    An option that is left out or None comes from the environment (HOLDFAST_PREFIX and so on), else from `StoreOptions`.
    Nothing is opened before the first use, and nothing is ever migrated as a side effect (except `:memory:`).
    """

    @cached_property
    def foreign(self) -> Foreign:
        """Tables that programs in other languages share: `hf.foreign.pdo(…)`, `durable(…)`, `airlock(…)`."""
        from holdfast.foreign import Foreign

        return Foreign(self.context)

    def worker(self, *, relay: bool = True, **options: Unpack[WorkerKeywords]) -> Worker:
        """Make a worker for this application's handlers: `async with hf.worker(): …`, or `await hf.worker().run()`.

        queues: those to serve; by default all that the handlers name. concurrency: attempts at once.
        poll: the longest pause between two looks at the queues. drain: how long handlers may finish at a stop.
        name: what the worker's id begins with. buffer: the most jobs to claim ahead.
        ring: share the keys with the other workers that do so, by bucket. relay: False leaves the routes to other
        workers; with `queues`, those routes are served whose queues are named. receive: False leaves the messages of
        brokers to other workers. shards: serve these alone, by number, by default all. Defaults: see `Worker`.
        """
        from holdfast.worker import Worker

        only_options("hf.worker()", options, [*WorkerKeywords.__annotations__, "relay"])
        if self.shards is not None:
            self._refuse_with_shards()
        relays, queues = switch(relay, "relay"), options.get("queues")
        routes = [one for one in self.context.routes if relays and (queues is None or one.queue in queues)]
        part: Part = "all" if relays else "handlers"
        home, *also = self._foreign_tables(part)
        return Worker(self.context, self.handlers, home.sources, also, self.receptions, routes, part, **options)

    def lifespan(
        self,
        own: OwnLifespan | None = None,
        *,
        worker: bool = False,
        check: bool = True,
        relay: bool = True,
        **options: Unpack[WorkerKeywords],
    ) -> Lifespan:
        """Live as long as an ASGI server: `FastAPI(lifespan=hf.lifespan())`, or `async with hf.lifespan():` in yours.

        At the start the tables are looked for, unless `check` is False; at the end connections are closed.
        own: the application's own lifespan, which runs inside this one. worker: run a worker beside the server; at the
        stop it drains before the server ends. relay and the other options are those of `worker`.
        Raises, when the server starts: SchemaMissing, SchemaMismatch, DatabaseUnavailable, HookFailed, ConfigError.
        """
        from holdfast.app.lifespan import Lifespan

        only_options("hf.lifespan()", options, [*WorkerKeywords.__annotations__, "own", "worker", "check", "relay"])
        if not switch(worker, "worker") and (options or not relay):
            said = ", ".join(options) or "relay"
            raise ConfigError("lifespan", "runs no worker that this could be said of; add worker=True", said)
        make = partial(self.worker, relay=relay, **options) if worker else None
        return Lifespan(self.store, self.aclose, own, bool(switch(check, "check")), make)

    @spelt
    def autodiscover(self, *packages: str, module: str = "jobs") -> list[str]:
        """Import the modules called `jobs` below packages, which register their handlers; return their names.

        `hf.autodiscover("shop")` imports shop.jobs, shop.orders.jobs and so on, at once; where `jobs` is a package, all
        that is in it. Other modules are left alone. Call it below the line that makes `hf`, which they import.
        Raises: ConfigError, which names the module that failed.
        """
        return autodiscover(packages, module)

    def _refuse_with_shards(self) -> None:
        """Raises: ConfigError for what must be in the shard of its key, and would be in the first one."""
        ordered = {
            name
            for name, one in self.context.queues.items()
            if one.settings.ordered or (one.settings.is_limited and not one.settings.is_split)
        }
        for reception in self.receptions:
            if reception.queue in ordered:
                rule = (
                    "with shards, messages of brokers are stored in the first one, and jobs of a queue with order or "
                    "limits may belong to others: receive into a plain queue, and let that handler enqueue the job"
                )
                raise ConfigError("queue", rule, reception.queue)
        for name, made in self.context.declared_schedules().items():
            if made.job.queue in ordered:
                rule = (
                    "with shards, ticks are jobs of the first one, and jobs of a queue with order or limits may belong "
                    "to others: let the schedule's job enqueue that one"
                )
                raise ConfigError("schedule", rule, name)
        for engine in self.context.engines:
            raise ConfigError("engine", "remote steps need one store: an application with shards has several", engine)

    def _foreign_tables(self, part: Part) -> list[Served]:
        """List the foreign tables that are served: those of the application's own database, then of others."""
        from holdfast.worker import Served

        if "foreign" not in self.__dict__:
            # Nobody has named any: their modules take as long to import as those of the worker.
            return [Served(next(iter(self.stores)), [])]
        home, *others = (Served(store, self.foreign.served_on(store, part)) for store in self.stores)
        return [home, *(served for served in others if served.sources)]

    def _foreign_routes(self) -> list[Served]:
        return self._foreign_tables("routes")

    @spelt
    def dashboard(
        self,
        *,
        access: AccessRule,
        hosts: Collection[str] | None = None,
        origins: Collection[str] = (),
        redact: Redact | None = None,
        redact_keys: Collection[str] | None = None,
        title: str = "Holdfast",
        refresh: Duration = 2.0,
    ) -> Dashboard:
        """Make the dashboard to mount: `app.mount("/holdfast", hf.dashboard(access=…).asgi)`, or its `.wsgi`.

        access: asked for every request, and returns who comes in and what they may do: `Access("ada", actions=…)`,
        `Access()` to look only, None for nobody. hosts: the names that the Host header may have; by default the server
        or framework around it decides. origins: further origins that forms may come from, such as that of a proxy.
        redact: `redact(where, value)` returns what is shown of a value of a payload, result, error or header.
        redact_keys: parts of the names of keys whose values are hidden, instead of the usual ones. title: of the pages.
        refresh: how often a page that is seen looks again, at least a second.
        It needs jinja2, which the extra `dashboard` brings. Raises: ConfigError.
        """
        from holdfast.dashboard import Dashboard
        from holdfast.dashboard.redaction import SECRET_KEYS
        from holdfast.dashboard.rendering import require

        require()
        return Dashboard(
            self.context,
            lambda: self.foreign.sources,
            access=access,
            hosts=hosts,
            origins=origins,
            redact=redact,
            redact_keys=SECRET_KEYS if redact_keys is None else redact_keys,
            title=title,
            refresh=refresh,
        )

    @spelt
    def migrate(self, *, new_shards: Collection[int] = ()) -> list[str]:
        """Bring Holdfast's own tables to this library's version and return the names of the migrations that ran.

        With shards, in each of them; a new one is told its number. One that has keys and is not there, because its file
        or its tables are gone, is not made anew, unless `new_shards` names it. Raises: Conflict.
        """
        ran: list[str] = []
        with nullcontext() if self.shards is None else founding.making(self.shards, new_shards):
            for store in self.stores.ours:
                with migrate.explained(all_or_nothing=store.dialect.migrates_as_one):
                    ran += [migration.name for migration in store.run(migrate.apply(store.migrations))]
            if self.shards is not None:
                self.shards.go(self.shards.set_up())
        return list(dict.fromkeys(ran))

    def close(self) -> None:
        """Close the connections that enqueueing opened, to every database of the application."""
        self.stores.close()

    async def aclose(self) -> None:
        """The async twin of `close`."""
        await self.stores.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing takes a thread, and a process that ends or is at its limit has none to give. The block's own error is
        # the one to hear about then; what is still open ends with the process.
        with suppress(RuntimeError):
            await self.aclose()
