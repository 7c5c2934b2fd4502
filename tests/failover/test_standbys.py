"""What is said of standbys: by `holdfast doctor`, and by a store whose URL leads to one."""

import asyncio
import json
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner

from holdfast import Holdfast
from holdfast.cli import main
from holdfast.errors import ReadOnlyDatabase
from holdfast.store import migrate
from tests.failover.pair import Pair, until

pytestmark = pytest.mark.slow

Doctor = Callable[[str], tuple[int, str]]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair(synchronous=False) as pair:
        yield pair


@pytest.fixture(scope="module")
def name(pair: Pair) -> str:
    """A database with our tables, which the standby has, too."""
    url = pair.primary.fresh_database()
    with Holdfast(url) as hf:
        hf.migrate()
    pair.caught_up()
    return url.rpartition("/")[2]


@pytest.fixture
def doctor() -> Doctor:
    """Run `holdfast doctor`; gives its exit code and the severity and words of what it says of standbys."""

    def examine(url: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["doctor", "--json", "--url", url])
        found = [json.loads(line) for line in done.stdout.splitlines()]
        [finding] = [one for one in found if one["check"] == "standbys"]
        return done.exit_code, f"{finding['severity']}: {finding['seen']}"

    return examine


def test_an_asynchronous_standby_is_told(pair: Pair, name: str, doctor: Doctor) -> None:
    for url in pair.urls(name).values():
        assert doctor(url) == (
            0,
            "ok: 1 standby follows, and no commit waits: a failover loses what has not arrived there",
        )


def test_who_looks_at_a_standby_is_told_that_it_takes_no_writes(pair: Pair, name: str, doctor: Doctor) -> None:
    expected = "problem: the server takes no writes: it is a standby, or set to be read-only"
    assert doctor(pair.standby.url(name)) == (7, expected)


def test_a_role_that_may_not_see_more_is_told_so(pair: Pair, name: str, doctor: Doctor) -> None:
    pair.primary.execute("create role plain login")
    pair.primary.execute("grant select on all tables in schema public to plain", name)
    _, seen = doctor(pair.primary.url(name).replace("postgres@", "plain@"))
    assert seen == "ok: 1 standby follows; whether commits wait for it, this role may not see (pg_monitor)"


def test_a_store_on_a_standby_reads_and_says_what_to_do_when_it_writes(pair: Pair, name: str) -> None:
    with Holdfast(pair.standby.url(name)) as hf:
        hf.store.check()

        @hf.job
        def send() -> None: ...

        with pytest.raises(ReadOnlyDatabase, match="Name the primary in the URL, or all hosts"):
            send.enqueue()

        async def main() -> None:
            with pytest.raises(ReadOnlyDatabase, match="Name the primary in the URL, or all hosts"):
                await send.aenqueue()
            await hf.aclose()

        asyncio.run(main())


@pytest.mark.parametrize("asked", ["primary", "read-write"])
def test_a_url_that_leads_to_standbys_alone_says_so(pair: Pair, name: str, asked: str) -> None:
    with Holdfast(f"{pair.standby.url(name)}?target_session_attrs={asked}") as hf:
        with pytest.raises(ReadOnlyDatabase):
            hf.store.check()

        async def main() -> None:
            with pytest.raises(ReadOnlyDatabase):
                await hf.store.arun(migrate.version())
            await hf.aclose()

        asyncio.run(main())


def test_a_synchronous_standby_is_told_and_missed(name: str, pair: Pair, doctor: Doctor) -> None:
    """The last one here: it stops the standby."""
    pair.make_synchronous()
    assert doctor(pair.primary.url(name)) == (0, "ok: 1 standby follows, and commits wait for 1")
    pair.standby.stop("fast")
    until("it is gone", lambda: pair.followers() == [])
    code, seen = doctor(pair.primary.url(name))
    assert code == 7
    assert seen.startswith("problem: commits wait for a synchronous standby, and none is connected")
