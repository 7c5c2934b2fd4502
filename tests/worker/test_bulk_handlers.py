"""How bulk handlers are registered, what their jobs take, and what is refused."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from holdfast import (
    Bulk,
    ConfigError,
    Job,
)
from tests.worker.bulk import add, nothing, plain
from tests.worker.stage import Stage


class Page(msgspec.Struct):
    url: str
    depth: int = 0


@dataclass
class Note:
    text: str


def test_an_item_may_be_whatever_a_payload_takes(stage: Stage) -> None:
    got: list[Any] = []

    @stage.hf.bulk
    async def structs(pages: list[Page]) -> None:
        got.extend(pages)

    @stage.hf.bulk
    def notes(notes: Sequence[Note]) -> None:
        got.extend(notes)

    @stage.hf.bulk
    def anything(things: list) -> None:  # type: ignore[type-arg]
        got.extend(things)

    structs.enqueue(Page("/a", 3))
    notes.using(key="n", priority=3).enqueue(Note("x"))
    anything.enqueue([1, 2])
    stage.hf.enqueue("structs", {"pages": {"url": "/b"}})
    stage.work()
    assert sorted(got, key=repr) == sorted([Page("/a", 3), Page("/b"), Note("x"), [1, 2]], key=repr)


def test_a_kind_may_change_between_one_job_and_many(sqlite_stage: Stage) -> None:
    """The payload of a bulk handler's job is that of an ordinary one with a single parameter."""
    stage, got = sqlite_stage, []

    @stage.hf.job
    def index(page: Page) -> None:
        got.append(page)

    index.enqueue(Page("/a"))
    index.enqueue(page=Page("/b"))
    later = stage.app()

    @later.bulk(kind="index", item="page")
    def index_many(pages: list[Page]) -> None:
        got.extend(pages)

    assert index_many.bind(Page("/c")).payload == index.bind(Page("/c")).payload
    stage.work(None, later)
    assert got == [Page("/a"), Page("/b")]
    index_many.enqueue(Page("/d"))
    stage.work()
    assert got[-1] == Page("/d")
    later.close()


def test_the_worker_and_enqueue_check_the_item(sqlite_stage: Stage) -> None:
    index = plain(sqlite_stage, "async", nothing)
    for wrong in ("one", [1], None):
        with pytest.raises(Exception, match="Invalid argument 'pages' of 'index'"):
            index.enqueue(wrong)  # type: ignore[arg-type]


def one(page: Page) -> None: ...
def none() -> None: ...
def bare(pages) -> None: ...  # type: ignore[no-untyped-def]
def two(pages: list[Page], depth: int) -> None: ...
def with_job(job: Job, pages: list[Page]) -> None: ...
def with_default(pages: list[Page] = []) -> None: ...  # noqa: B006
def bulk_first(bulk: Bulk, pages: list[Page]) -> None: ...
def mapping(pages: dict[str, Page]) -> None: ...


@pytest.mark.parametrize(
    "fn", [one, none, bare, two, with_job, with_default, bulk_first, mapping], ids=lambda fn: fn.__name__
)
def test_another_shape_is_refused_with_the_one_to_write(sqlite_stage: Stage, fn: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        sqlite_stage.hf.bulk(fn)
    text = str(refused.value)
    assert f"`async def {fn.__name__}(pages: list[Page], bulk: Bulk) -> None`" in text
    assert sqlite_stage.hf.handlers == {}


def test_options_are_checked(sqlite_stage: Stage) -> None:
    hf: Any = sqlite_stage.hf
    for options, said in (
        ({"size": 0}, "size: must be a whole number from 1 to"),
        ({"size": "x"}, "size: must be a whole number"),
        ({"item": "not a name"}, "item: must be a name"),
        ({"sizes": 3}, r"hf.bulk\(\) takes no such option \(did you mean size\?\)"),
        ({"lease": 0}, "lease: must be"),
    ):
        with pytest.raises(ConfigError, match=said):

            @hf.bulk(**options)
            def index(pages: list[int]) -> None: ...

    @hf.bulk
    def index(pages: list[int]) -> None: ...

    with pytest.raises(ConfigError, match=r"one handler.*there is .*\.index \(.*test_bulk_handlers\.py:\d+\)"):
        hf.job(kind="index")(lambda: None)


def test_an_ordinary_handler_gets_no_bulk(sqlite_stage: Stage) -> None:
    with pytest.raises(ConfigError, match="bulk"):

        @sqlite_stage.hf.job
        def index(pages: list[int], bulk: Bulk) -> None: ...


def test_middlewares_and_blocks_around_one_job_are_not_called(sqlite_stage: Stage) -> None:
    called: list[str] = []

    @sqlite_stage.hf.middleware
    async def watch(job: Job, call_next: Any) -> Any:
        called.append("middleware")
        return await call_next(job)

    @sqlite_stage.hf.around_handler
    def around(job: Job) -> Any:
        called.append("around")
        raise AssertionError

    jobs = add(sqlite_stage, plain(sqlite_stage, "def", nothing), 2)
    sqlite_stage.work()
    assert (called, [sqlite_stage.state(job) for job in jobs]) == ([], ["done", "done"])


def test_foreign_tables_take_no_bulk_handlers(sqlite_stage: Stage) -> None:
    urn: Any = sqlite_stage.hf.foreign.pdo().handler("urn:page")
    with pytest.raises(ConfigError, match="bulk handlers are for Holdfast's own jobs"):
        urn(plain(sqlite_stage, "def", nothing))
    with pytest.raises(ConfigError, match="parameter bulk of two_at_once"):

        @urn
        def two_at_once(pages: list[int], bulk: Bulk) -> None: ...
