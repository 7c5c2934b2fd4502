"""Every desk keeps the same promises: what it says it can do works, and what it does not say is refused in its words.

A new kind of tables adds a `Setting` here and passes as it is.
"""

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grimp
import pytest

from holdfast import Holdfast
from holdfast.admin import JobsDesk
from holdfast.errors import ConfigError, Conflict, JobNotFound, NotSupported
from holdfast.flow import Flow, run_series
from holdfast.foreign.kinds import KINDS
from holdfast.life.desk import CAPABILITIES, Capability, Desk
from holdfast.life.listing import Kept, Page, Wanted
from holdfast.values.changes import Change
from holdfast.values.ids import new_id
from tests.cli.conftest import add, claim, kill
from tests.foreign import test_cli_airlock as airlock
from tests.foreign.conftest import Sql
from tests.foreign.test_cli_durable import dispatch, ms
from tests.foreign.test_cli_pdo import bury, reserve

KIND = {"jobs": "send_receipt", "pdo": "urn:babel:orders:created", "durable": "add", "airlock": "order.created"}


class Setting(ABC):
    """A desk on a real database, and how rows come to its tables."""

    desk: Desk
    unknown_id = "999999"

    def __init__(self, hf: Holdfast) -> None:
        self.hf = hf
        self.sql = Sql(hf)

    def run(self, work: Flow[Any]) -> Any:
        return self.hf.store.run(work)

    @abstractmethod
    def add(self, queue: str = "mail", *, later: bool = False, age: float = 0) -> str:
        """Add a row that waits, due or later, made `age` seconds ago, and return its id."""

    @abstractmethod
    def hold(self, row_id: str) -> None:
        """Let a worker claim the row."""

    def kill(self, message: str = "no such order") -> str:
        """Add a dead letter and return its id."""
        raise NotImplementedError


class OurJobs(Setting):
    unknown_id = new_id()

    def __init__(self, hf: Holdfast) -> None:
        super().__init__(hf)
        self.desk = JobsDesk()

    def add(self, queue: str = "mail", *, later: bool = False, age: float = 0) -> str:
        self.hf.store.now = datetime.now(UTC) - timedelta(seconds=age) if age else None
        [job_id] = add(self.hf.store, queue=queue, delay_ms=3_600_000 if later else 0)
        self.hf.store.now = None
        return job_id

    def hold(self, row_id: str) -> None:
        claim(self.hf.store, queue=self.run(self.desk.show(row_id)).queue)

    def kill(self, message: str = "no such order") -> str:
        return kill(self.hf.store, message=message)[0]


class Messages(Setting):
    def __init__(self, hf: Holdfast) -> None:
        super().__init__(hf)
        self.queue = hf.foreign.pdo()
        self.queue.create_schema()
        self.desk = self.queue.desk

    def add(self, queue: str = "mail", *, later: bool = False, age: float = 0) -> str:
        self.hf.store.now = datetime.now(UTC) - timedelta(seconds=age) if age else None
        row_id = self.queue.publish(KIND["pdo"], {}, queue=queue, delay=3600 if later else 0)
        self.hf.store.now = None
        return str(row_id)

    def hold(self, row_id: str) -> None:
        reserve(self.sql, int(row_id), datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S"))

    def kill(self, message: str = "no such order") -> str:
        return str(bury(self.sql, message, queue="mail"))


class Steps(Setting):
    unknown_id = "nobody:0"

    def __init__(self, hf: Holdfast) -> None:
        super().__init__(hf)
        source = hf.foreign.durable()
        source.create_schema()
        self.desk = source.desk
        self.count = 0

    def add(self, queue: str = "mail", *, later: bool = False, age: float = 0) -> str:
        self.count += 1
        row_id = f"run{self.count}:0"
        dispatch(self.sql, row_id, age - self.count / 100, grp=queue, claimed_at=ms(-3600) if later else None)
        return row_id

    def hold(self, row_id: str) -> None:
        self.sql(
            "update durable_transport_tasks set claimed_by = 'w/1/0', claimed_at = :at where step_id = :id",
            id=row_id,
            at=ms(),
        )


class Outbox(Setting):
    unknown_id = new_id()

    def __init__(self, hf: Holdfast) -> None:
        super().__init__(hf)
        source = hf.foreign.airlock()
        source.create_schema()
        self.desk = source.desk

    def add(self, queue: str = "mail", *, later: bool = False, age: float = 0) -> str:
        return airlock.add(
            self.sql, age, aggregate_type=queue, **({"next_retry_at": airlock.ago(hours=-1)} if later else {})
        )

    def hold(self, row_id: str) -> None:
        self.sql(
            "update airlock_messages set status = 'IN_FLIGHT', locked_by = 'w', "
            "locked_until = now() + interval '1 hour' where id = :id::text::uuid",
            id=row_id,
        )

    def kill(self, message: str = "no such order") -> str:
        return airlock.bury(self.sql, message, aggregate_type="mail")


SETTINGS = {"jobs": OurJobs, "pdo": Messages, "durable": Steps, "airlock": Outbox}
OURS = ["jobs-sqlite", "jobs-pg", "jobs-mariadb"]
PLACES = [*OURS, "pdo-sqlite", "pdo-mariadb", "durable-pg", "durable-mariadb", "airlock-pg"]


@pytest.fixture(params=PLACES)
def at(request: pytest.FixtureRequest) -> Iterator[Setting]:
    kind, _, database = request.param.partition("-")
    with closing(Holdfast(request.getfixturevalue(f"{database}_url"))) as hf:
        hf.migrate()
        yield SETTINGS[kind](hf)


def kind_of(at: Setting) -> str:
    return next(KIND[name] for name, setting in SETTINGS.items() if isinstance(at, setting))


def ids(page: Page) -> list[str]:
    return [row.id for row in page.rows]


def pages(at: Setting, read: Callable[..., Flow[Page]], wanted: Wanted, limit: int, newest: bool) -> list[str]:
    """Follow a list to its end."""
    found, after = [], None
    for _ in range(20):
        page = at.run(read(wanted, limit=limit, after=after, newest=newest))
        assert len(page.rows) <= limit
        found += ids(page)
        if page.more is None:
            return found
        after = page.more
    raise AssertionError("the list has no end")


def test_the_command_line_asks_neither_which_tables_nor_which_database_it_works_on() -> None:
    graph = grimp.build_graph("holdfast", exclude_type_checking_imports=False)
    ours = [name for name in graph.modules if name.startswith("holdfast.cli")]
    used = {name: graph.find_modules_directly_imported_by(name) for name in ours}
    # The two that find what --store names, and make its tables.
    naming = {"holdfast.cli.stores", "holdfast.cli.schemas"}
    assert {name for name, found in used.items() if any("holdfast.foreign" in each for each in found)} == naming
    # Which kinds there are is said by a list of `foreign`: a further one touches no command.
    kinds = {name for name in graph.modules if re.match(r"holdfast\.foreign\.(?!kinds$)", name)}
    assert {"holdfast.foreign.durable", "holdfast.foreign.durable.engine"} <= kinds
    assert not [each for found in used.values() for each in found & kinds]
    # What is wrong with rows is asked of a desk, too.
    assert not [name for name, found in used.items() if "holdfast.admin.examine" in found]
    words = [f'"{kind}' for kind in KINDS] + [f"{kind}:" for kind in KINDS]
    files = {name: Path(importlib.import_module(name).__file__ or "").read_text("utf-8") for name in ours}
    code = {name: re.sub(r'""".*?"""', "", text, flags=re.DOTALL) for name, text in files.items()}
    assert [(name, word) for name, text in code.items() for word in words if word in text] == []
    # `holdfast sql --dialect` prints what a database would run that nobody is connected to.
    asking = {name for name, found in used.items() if any("holdfast.store.dialects" in each for each in found)}
    assert asking == {"holdfast.cli.sql"}


# Looking


def test_rows_are_counted_by_queue(at: Setting) -> None:
    assert at.run(at.desk.counts()) == []
    at.add(age=30)
    at.add()
    at.add(later=True)
    at.hold(at.add(queue="held"))
    held, mail = sorted(at.run(at.desk.counts()), key=lambda count: count.queue)
    assert (mail.due, mail.scheduled, mail.leased, held.leased, held.due) == (2, 1, 0, 1, 0)
    assert 25 < mail.oldest_seconds < 120


@pytest.mark.parametrize("limit", [1, 2, 5, 50])
def test_a_list_is_read_page_by_page_to_its_end(at: Setting, limit: int) -> None:
    rows = [at.add() for _ in range(5)]
    assert pages(at, at.desk.rows, Wanted(), limit, newest=False) == rows
    assert pages(at, at.desk.rows, Wanted(), limit, newest=True) == rows[::-1]
    assert ids(at.run(at.desk.rows(after=rows[2], newest=False))) == rows[3:]


def test_a_filter_chooses(at: Setting) -> None:
    old, held, other = at.add(age=7200), at.add(queue="held"), at.add(queue="other")
    at.hold(held)
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    for wanted, found in (
        (Wanted(states=("leased",)), [held]),
        (Wanted(states=("pending",)), [other, old]),
        (Wanted(states=("pending", "leased")), [other, held, old]),
        (Wanted(queue="other"), [other]),
        (Wanted(kind=kind_of(at)), [other, held, old]),
        (Wanted(kind="nothing"), []),
        (Wanted(ids=(old, other)), [other, old]),
        (Wanted(created_before=hour_ago), [old]),
        (Wanted(created_after=hour_ago), [other, held]),
    ):
        assert ids(at.run(at.desk.rows(wanted))) == found, wanted


def test_a_state_that_it_does_not_list_is_refused(at: Setting) -> None:
    for state in ("nonsense", *({"done", "dead", "cancelled"} - set(at.desk.states))):
        with pytest.raises(ConfigError):
            at.run(at.desk.rows(Wanted(states=(state,))))


def test_one_row_is_shown(at: Setting) -> None:
    row_id = at.add()
    row = at.run(at.desk.show(row_id))
    assert (row.id, row.state, row.queue, row.kind) == (row_id, "pending", "mail", kind_of(at))
    at.hold(row_id)
    assert at.run(at.desk.show(row_id)).state == "leased"
    with pytest.raises(JobNotFound):
        at.run(at.desk.show(at.unknown_id))


def test_what_is_well_has_no_trouble_and_what_is_late_has(at: Setting) -> None:
    at.add()
    assert {finding.severity for finding in at.run(at.desk.examine(60))} == {"ok"}
    at.add(age=600)
    [late] = [finding for finding in at.run(at.desk.examine(60)) if finding.severity != "ok"]
    assert (late.check, bool(late.do)) == ("lag", True)
    assert "2 due" in late.seen


def test_what_is_looked_at_one_by_one_is_all_that_is_looked_at(at: Setting) -> None:
    at.add(age=600)
    found = at.run(at.desk.examine(60, served=["mail"]))
    apart = [at.run(at.desk.examine(60, served=["mail"], only=name)) for name in at.desk.checks or [None]]
    assert [(one.check, one.severity) for part in apart for one in part] == [(one.check, one.severity) for one in found]
    assert {one.check for one in found} >= set(at.desk.checks)


# What it can do, and what it cannot


def retry(at: Setting) -> None:
    later, held = at.add(later=True), at.add()
    assert at.run(at.desk.retry(later, "ada")) == "due"
    at.hold(held)
    for row_id, error in ((held, Conflict), (at.unknown_id, JobNotFound)):
        with pytest.raises(error):
            at.run(at.desk.retry(row_id, "ada"))
    [line] = at.run(at.desk.audit(later))
    assert (line.action, line.actor) == ("run_now", "ada")
    assert at.run(at.desk.audit(held)) == []


def cancel(at: Setting) -> None:
    row_id, held = at.add(later=True), at.add()
    assert at.run(at.desk.cancel(row_id, "ada")) == "cancelled"
    at.hold(held)
    assert at.run(at.desk.cancel(held, "ada")) == "requested"
    with pytest.raises(JobNotFound):
        at.run(at.desk.cancel(at.unknown_id, "ada"))
    [line] = at.run(at.desk.audit(row_id))
    assert line.actor == "ada"
    several = [at.add(), at.add(later=True)]
    assert run_series(at.desk.cancel_all(Wanted(ids=tuple(several)), "ada"), at.run).cancelled == several


def change(at: Setting) -> None:
    row_id, held = at.add(later=True), at.add()
    at.hold(held)
    change = Change(priority=5, run_after=0)
    foreseen = run_series(at.desk.change_all(Wanted(queue="mail"), change, "ada", dry_run=True), at.run)
    assert (foreseen.changed, foreseen.left) == ([row_id], {held: "leased"})
    assert run_series(at.desk.change_all(Wanted(queue="mail"), change, "ada"), at.run) == foreseen
    assert at.run(at.desk.show(row_id)).priority == 5
    assert sum(count.due for count in at.run(at.desk.counts())) == 1
    [line] = at.run(at.desk.audit(row_id))
    assert line.actor == "ada"


def letters(at: Setting) -> None:
    first, second, other = at.kill("order 1 is gone"), at.kill("order 27 is gone"), at.kill("the network is down")
    large, small = at.run(at.desk.groups())
    assert (large.count, large.sample_id, small.count, small.sample_id) == (2, second, 1, other)
    assert pages(at, at.desk.letters, Wanted(), 2, newest=True) == [other, second, first]
    assert pages(at, at.desk.letters, Wanted(group=large.group), 1, newest=False) == [first, second]
    assert at.run(at.desk.count_letters()) == 3
    assert at.run(at.desk.count_letters(Wanted(error="NETWORK"))) == 1
    assert at.run(at.desk.count_letters(Wanted(kind=kind_of(at), ids=(first, other)))) == 2
    shown = at.run(at.desk.show(first, dead=True))
    assert (shown.state, shown.last_error["message"]) == ("dead", "order 1 is gone")
    assert sum(count.dead for count in at.run(at.desk.counts())) == 3
    found = [finding for finding in at.run(at.desk.examine()) if finding.check == "dead-letters"]
    assert [finding.severity for finding in found] == ["warning", "warning"]
    assert large.sample_id in found[0].do


def replay(at: Setting) -> None:
    first, second, other = at.kill("order 1 is gone"), at.kill("order 27 is gone"), at.kill("the network is down")
    dry = at.run(at.desk.replay(Wanted(error="order"), 10, "ada", dry_run=True))
    assert (dry.ids, at.run(at.desk.count_letters()), at.run(at.desk.audit(first, dead=True))) == (
        [first, second],
        3,
        [],
    )
    done = at.run(at.desk.replay(Wanted(error="order"), 1, "ada"))
    assert (done.ids, done.conflicts) == ([first], {})
    live = (done.rows or {first: first})[first]
    assert at.run(at.desk.show(live)).state == "pending"
    assert at.run(at.desk.count_letters()) == 2
    assert [line.action for line in at.run(at.desk.audit(first, dead=True))] == ["replay"]
    assert at.run(at.desk.replay(Wanted(), 10, "ada")).ids == [second, other]


def discard(at: Setting) -> None:
    first, second = at.kill("order 1 is gone"), at.kill("the network is down")
    assert at.run(at.desk.discard(Wanted(), 10, "ada", dry_run=True)) == [first, second]
    assert at.run(at.desk.discard(Wanted(error="network"), 10, "ada")) == [second]
    assert at.run(at.desk.discard(Wanted(), 10, None)) == [first]
    assert at.run(at.desk.count_letters()) == 0
    [line] = at.run(at.desk.audit(second, dead=True))
    assert (line.action, line.actor, line.detail["error"]["message"]) == ("discard", "ada", "the network is down")


def prune(at: Setting) -> None:
    for _ in range(3):
        at.kill()
    [part] = at.run(at.desk.kept())
    assert part == Kept("dead", "mail")
    assert at.run(at.desk.count_older(part, timedelta(days=1))) == at.run(at.desk.prune(part, timedelta(days=1))) == 0
    at.hf.store.now = datetime.now(UTC) + timedelta(days=2)
    assert at.run(at.desk.count_older(part, timedelta(days=1))) == 3
    assert at.run(at.desk.prune(part._replace(queue="other"), timedelta(days=1))) == 0
    assert at.run(at.desk.prune(part, timedelta(days=1), limit=2)) == 2
    assert at.run(at.desk.prune(part, timedelta(days=1), limit=2)) == 1
    assert at.run(at.desk.kept()) == []


WORKS: dict[Capability, Callable[[Setting], None]] = {
    "retry": retry,
    "cancel": cancel,
    "change": change,
    "letters": letters,
    "replay": replay,
    "discard": discard,
    "prune": prune,
}
PART = Kept("dead", "mail")
ASKS: dict[Capability, list[Callable[[Desk], Any]]] = {
    "retry": [lambda desk: desk.retry("1", "ada")],
    "cancel": [lambda desk: desk.cancel("1", "ada"), lambda desk: desk.cancel_all(Wanted(), "ada")],
    "change": [lambda desk: desk.change_all(Wanted(), Change(priority=1), "ada")],
    "letters": [lambda desk: desk.letters(), lambda desk: desk.count_letters(), lambda desk: desk.groups()],
    "replay": [lambda desk: desk.replay(Wanted(), 1, "ada")],
    "discard": [lambda desk: desk.discard(Wanted(), 1, "ada")],
    "prune": [
        lambda desk: desk.kept(),
        lambda desk: desk.count_older(PART, timedelta(0)),
        lambda desk: desk.prune(PART, timedelta(0)),
    ],
}


def test_every_capability_is_tried_here() -> None:
    assert WORKS.keys() == ASKS.keys() == CAPABILITIES


@pytest.mark.parametrize("what", sorted(CAPABILITIES))
def test_what_it_says_works_and_what_it_does_not_say_is_refused_in_its_words(at: Setting, what: Capability) -> None:
    assert at.desk.can(what) is (what in at.desk.capabilities)
    if at.desk.can(what):
        at.desk.require(what)
        WORKS[what](at)
        return
    for ask in ASKS[what]:
        with pytest.raises(NotSupported) as raised:
            at.run(ask(at.desk))
        assert (raised.value.store, raised.value.action) == (at.desk.name, what)
        # A reason, and a second sentence with what to do instead.
        assert str(raised.value) == f"{at.desk.name} {at.desk.refusals[what]}"
        assert str(raised.value).rstrip(".").count(". ") >= 1
    with pytest.raises(NotSupported):
        at.desk.require(what)


def test_our_own_jobs_do_everything() -> None:
    assert JobsDesk().capabilities == CAPABILITIES


def test_an_action_that_is_undone_leaves_no_audit_line(at: Setting) -> None:
    row_id = at.add(later=True)
    with pytest.raises(ZeroDivisionError):
        at.run(_undone(at.desk.retry(row_id, "ada")))
    assert at.run(at.desk.audit(row_id)) == []
    assert sum(count.scheduled for count in at.run(at.desk.counts())) == 1


def _undone(work: Flow[Any]) -> Flow[Any]:
    def steps() -> Any:
        yield from work
        raise ZeroDivisionError

    return Flow("undone", steps)
