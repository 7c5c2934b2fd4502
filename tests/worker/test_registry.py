"""Handlers in many modules: registries that an application includes, and modules that it finds by itself."""

import asyncio
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Bulk, ConfigError, Holdfast, Job, Registry, Run
from holdfast.testing.inline import run_due


class Client:
    pass


@pytest.fixture
def hf(sqlite_url: str) -> Iterator[Holdfast]:
    app = Holdfast(sqlite_url)
    app.migrate()
    yield app
    app.close()


def test_an_application_runs_what_it_includes_under_the_prefix(hf: Holdfast) -> None:
    billing, seen = Registry(prefix="billing."), []

    @billing.on_start
    def client() -> Client:
        return Client()

    @billing.job(key="order:{order_id}")
    async def charge(job: Job, client: Client, order_id: int) -> None:
        seen.append((job.kind, job.key, order_id))

    @billing.bulk
    async def note(items: list[int], bulk: Bulk) -> None:
        seen.append((bulk.jobs[0].kind, None, *items))

    @billing.workflow(version=2)
    async def fulfil(run: Run, order_id: int) -> int:
        await run.step(double, order_id)
        return order_id

    @fulfil.version(1)
    async def fulfil_before(run: Run, order_id: int) -> int:
        return order_id

    async def double(order_id: int) -> int:
        return order_id * 2

    hf.include(billing)
    assert list(hf.handlers) == ["billing.charge", "billing.note", "billing.fulfil@2", "billing.fulfil@1"]
    charge.enqueue(order_id=1)
    asyncio.run(closing(hf, charge.using(priority=3).aenqueue(order_id=2)))
    note.enqueue(3)
    run = fulfil.start(order_id=4, id="four")
    run_due(hf)
    assert seen == [("billing.charge", "order:2", 2), ("billing.charge", "order:1", 1), ("billing.note", None, 3)]
    assert (run.result(), hf.runs(workflow="billing.fulfil")[0].id) == (4, "four")

    @fulfil.version(3)
    async def fulfil_later(run: Run, order_id: int) -> int:
        return order_id

    assert "billing.fulfil@3" in hf.handlers


async def closing(hf: Holdfast, work: object) -> None:
    await work  # type: ignore[misc]
    await hf.aclose()


def test_a_handler_of_a_registry_that_nobody_included_says_so_at_enqueue() -> None:
    registry = Registry()

    @registry.job
    def act(number: int) -> int:
        return number + 1

    @registry.workflow
    async def fulfil(run: Run) -> None: ...

    assert act(1) == 2
    for enqueue in (
        lambda: act.enqueue(number=1),
        lambda: act.bind(number=1),
        lambda: act.using(priority=1).enqueue(number=1),
        lambda: asyncio.run(act.aenqueue(number=1)),
        lambda: fulfil.start(),
    ):
        with pytest.raises(ConfigError, match=r"no application has included it.*hf\.include\(registry\)"):
            enqueue()


def test_a_registry_is_included_once_and_takes_nothing_after_that(hf: Holdfast) -> None:
    registry = Registry()

    @registry.job
    def act() -> None: ...

    hf.include(registry)
    with pytest.raises(ConfigError, match="a registry is included once; this one is in <Holdfast"):
        hf.include(registry, prefix="again.")
    with pytest.raises(ConfigError, match=r"is included in <Holdfast .* already; register its handlers before that"):

        @registry.job
        def late() -> None: ...

    with pytest.raises(ConfigError, match="takes a Registry"):
        hf.include(hf)  # type: ignore[arg-type]


def test_a_kind_that_is_there_is_refused_and_nothing_of_the_registry_is_taken(hf: Holdfast) -> None:
    registry = Registry()

    @registry.on_start
    def client() -> Client:
        return Client()

    @registry.job
    def first() -> None: ...

    @registry.job(kind="act")
    def second() -> None: ...

    @hf.job
    def act() -> None: ...

    with pytest.raises(ConfigError, match=r"one handler.*prefix=.*there is .*\.act \(.*test_registry\.py:\d+\).*'act'"):
        hf.include(registry)
    assert (list(hf.handlers), hf.context.hooks.all) == (["act"], [])
    hf.include(registry, prefix="library.")
    assert list(hf.handlers) == ["act", "library.first", "library.act"]


def test_registries_include_registries(hf: Holdfast) -> None:
    inner, outer = Registry(prefix="mail."), Registry(prefix="shop.")

    @inner.job
    def send() -> None: ...

    outer.include(inner)
    with pytest.raises(ConfigError, match="no application has included it"):
        send.enqueue()
    with pytest.raises(ConfigError, match="cannot include itself"):
        outer.include(outer)
    hf.include(outer)
    assert send.enqueue().created
    assert list(hf.handlers) == ["shop.mail.send"]


# Modules


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    root = tmp_path / "corner_shop"
    for folder in ("", "orders", "orders/jobs", "untouched"):
        (root / folder).mkdir(exist_ok=True)
        (root / folder / "__init__.py").touch()
    (root / "jobs.py").touch()
    (root / "orders" / "jobs" / "mail.py").touch()
    (root / "orders" / "views.py").write_text("raise RuntimeError('not to be imported')")
    (root / "untouched" / "__init__.py").write_text("raise RuntimeError('not to be imported')")
    yield root
    for name in [name for name in sys.modules if name.partition(".")[0] == "corner_shop"]:
        del sys.modules[name]


def test_modules_called_jobs_are_found_below_a_package_and_nothing_else_is_imported(
    hf: Holdfast, package: Path
) -> None:
    found = hf.autodiscover("corner_shop")
    assert found == ["corner_shop.jobs", "corner_shop.orders.jobs", "corner_shop.orders.jobs.mail"]
    assert sys.modules.keys() >= set(found)


def test_a_module_that_fails_is_named(hf: Holdfast, package: Path) -> None:
    (package / "orders" / "tasks.py").write_text("import nowhere_to_be_found")
    with pytest.raises(ConfigError, match=r"importing corner_shop.orders.tasks failed: ModuleNotFoundError.*nowhere"):
        hf.autodiscover("corner_shop", module="tasks")
    for wrong, why in (
        ("nowhere_at_all", "importing nowhere_at_all failed"),
        ("corner_shop.jobs", "must be a package"),
    ):
        with pytest.raises(ConfigError, match=why):
            hf.autodiscover(wrong)
    with pytest.raises(ConfigError, match="names of packages"):
        hf.autodiscover()


def test_a_module_that_is_imported_under_two_names_is_told_as_that(hf: Holdfast, tmp_path: Path) -> None:
    file = tmp_path / "jobs.py"
    file.write_text("def act() -> None: ...\n")

    def imported(name: str) -> Any:
        found = runpy.run_path(str(file), run_name=name)["act"]
        return hf.job(found)

    imported("__main__")
    with pytest.raises(
        ConfigError, match=r"is __main__\.act \(.*jobs\.py:1\) already, and shop\.jobs\.act is the same"
    ):
        imported("shop.jobs")
