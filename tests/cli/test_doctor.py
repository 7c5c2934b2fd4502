"""`holdfast doctor`: each thing that can be wrong is made wrong, and the finding must say so and what to do."""

import json
import re
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.store import Store
from holdfast.worker import registry
from tests.cli.conftest import Run, add, claim, kill, lines
from tests.cli.test_workers import INFO, silent
from tests.servers import MariaDB, PgBouncer, Postgres


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, place: Path) -> str:
    return "sqlite:///shop.db" if request.param == "sqlite" else request.getfixturevalue("pg_url")  # type: ignore[no-any-return]


def findings(run: Run, url: str, check: str, *words: str, code: int = 7) -> list[dict[str, Any]]:
    found = lines(run("doctor", "--json", "--url", url, *words, code=code))
    return [finding for finding in found if finding["check"] == check]


def trouble(run: Run, url: str, check: str, *words: str) -> dict[str, Any]:
    [finding, *_] = [f for f in findings(run, url, check, *words) if f["severity"] != "ok"]
    assert finding["do"]
    return finding


def test_all_is_well(run: Run, store: Store, url: str) -> None:
    store.run(registry.beat("web1-1", INFO))
    shown = run("doctor", "--url", url)
    assert shown.stdout.endswith("all is well\n")
    assert {line.split()[0] for line in shown.stdout.splitlines()[:-2]} == {"ok"}


def test_an_idle_database_without_workers_is_well_too(run: Run, app: str, url: str) -> None:
    run("doctor", "--url", url)


def test_without_tables_it_says_what_to_run(run: Run, place: Path, url: str) -> None:
    finding = trouble(run, url, "schema")
    assert finding["severity"] == "problem"
    assert "holdfast migrate apply" in finding["do"]
    assert not (place / "shop.db").exists()


def test_tables_of_another_version(run: Run, store: Store, url: str) -> None:
    with store.link() as link:
        link.raw.execute("update holdfast_meta set value = '99'")
    assert "upgrade holdfast" in trouble(run, url, "schema")["do"]


def test_due_jobs_of_a_kind_that_no_live_worker_handles(run: Run, store: Store, url: str) -> None:
    store.run(registry.beat("web1-1", '{"queues": ["default", "mail"], "kinds": ["send"]}'))
    store.run(registry.beat("web1-2", '{"queues": ["bulk"], "kinds": ["old_name"]}'))
    add(store, 2, kind="send", queue="mail")
    assert findings(run, url, "kinds", code=0)[0]["severity"] == "ok"
    add(store, 3, kind="old_name", queue="mail")
    finding = trouble(run, url, "kinds")
    assert finding["severity"] == "problem"
    assert "queue mail: 3 due of kind old_name" in finding["seen"]
    assert "no live worker handles that kind" in finding["seen"]
    assert "--kind old_name" in finding["do"]


def test_due_jobs_that_nobody_serves(run: Run, store: Store, url: str) -> None:
    add(store, 3)
    finding = trouble(run, url, "lag")
    assert finding["severity"] == "problem"
    assert finding["seen"].startswith("queue mail: 3 due, the oldest for ")
    assert "--queues mail" in finding["do"]
    assert "no live worker" in trouble(run, url, "workers")["seen"]


def test_a_queue_that_falls_behind(run: Run, store: Store, url: str) -> None:
    store.run(registry.beat("web1-1", INFO))
    add(store, 1)
    assert findings(run, url, "lag", code=0)[0]["severity"] == "ok"
    store.now = datetime.now(UTC) - timedelta(minutes=5)
    add(store, 1)
    assert "2 due, the oldest for 5 m" in trouble(run, url, "lag")["seen"]
    findings(run, url, "lag", "--lag", "10m", code=0)


def test_leases_that_nobody_takes_back(run: Run, store: Store, url: str) -> None:
    add(store, 2)
    store.now = datetime.now(UTC) - timedelta(minutes=5)
    store.run(registry.beat("web1-1", INFO))
    add(store, 2)
    [lease, _] = claim(store, 2, lease_ms=1000)
    finding = trouble(run, url, "leases")
    assert finding["severity"] == "problem"
    assert lease.job_id in finding["seen"]
    assert "send_receipt" in finding["do"]


def test_dead_letters_by_group(run: Run, store: Store, url: str) -> None:
    kill(store, 2, message="order 5 is gone")
    for word in ("red", "green", "blue", "pink", "grey", "teal"):
        kill(store, 1, message=f"{word} is down")
    found = findings(run, url, "dead-letters")
    assert len(found) == 6
    assert "2 × send_receipt" in found[0]["seen"]
    assert "order 5 is gone" in found[0]["seen"]
    assert "dead replay --kind send_receipt --group" in found[0]["do"]
    assert "2 more groups with 2 dead letters" in found[-1]["seen"]
    findings(run, url, "dead-letters", "--skip", "dead-letters", code=0)


def test_two_kinds_that_fail_alike_are_replayed_apart(run: Run, store: Store, url: str) -> None:
    kill(store, 2, message="the mail server is down")
    kill(store, 1, message="the mail server is down", kind="send_invoice")
    [receipts, invoices] = findings(run, url, "dead-letters")
    [command] = re.findall("`holdfast (dead replay [^`]*)`", invoices["do"])
    assert command.rpartition(" ")[2] in receipts["do"]
    assert "replayed 1 dead letter" in run(*command.split(), "--url", url).stdout
    assert "2 × send_receipt" in findings(run, url, "dead-letters")[0]["seen"]


def test_a_silent_worker(run: Run, store: Store, url: str) -> None:
    silent(store, "web1-2", timedelta(minutes=3))
    finding = trouble(run, url, "workers")
    assert "web1-2 (host web1, pid 4821) has been silent for 3 m" in finding["seen"]


def test_a_missing_index(run: Run, store: Store, url: str) -> None:
    with store.link() as link:
        link.raw.execute("drop index holdfast_jobs_claim_idx")
    assert "holdfast_jobs_claim_idx" in trouble(run, url, "indexes")["seen"]


def test_a_transaction_that_holds_the_horizon(run: Run, pg_url: str) -> None:
    with closing(Store(pg_url)) as other, other.link() as link:
        link.raw.execute("begin isolation level repeatable read")
        link.raw.execute("select 1")
        finding = trouble(run, pg_url, "transactions", "--long", "0")
        assert f"pg_terminate_backend({link.raw.info.backend_pid})" in finding["do"]
        link.raw.execute("rollback")


def test_dead_rows(run: Run, place: Path, pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.admin import health
    from holdfast.admin.health import TableHealth
    from holdfast.flow import Flow

    def bloated() -> Flow[list[TableHealth]]:
        def steps() -> Any:
            yield from ()
            return [TableHealth("holdfast_jobs", 1000, 900_000, None, 10**9)]

        return Flow("table_health", steps)

    run("migrate", "apply", "--url", pg_url)
    monkeypatch.setattr(health, "table_health", bloated)
    finding = trouble(run, pg_url, "tables")
    assert "900,000 dead rows" in finding["seen"]
    assert "vacuum" in finding["do"]


def test_a_clock_that_runs_ahead(run: Run, pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    real = time.time
    monkeypatch.setattr("holdfast.cli.checks.time.time", lambda: real() - 90)
    assert "90.0 s ahead of this host's" in trouble(run, pg_url, "clocks")["seen"]


@pytest.mark.parametrize(
    "encoding, seen", [("SQL_ASCII", "has no encoding"), ("LATIN1", "keeps LATIN1"), ("UTF8", "keeps UTF-8")]
)
def test_a_database_that_was_not_made_for_every_text(run: Run, postgres: Postgres, encoding: str, seen: str) -> None:
    name = f"encoded_{encoding.lower()}"
    postgres.start().execute(f"create database {name} encoding '{encoding}' template template0")
    [finding] = findings(run, postgres.url(name), "encoding")
    postgres.drop_database(name)
    assert seen in finding["seen"]
    assert (finding["severity"] == "ok") is (encoding == "UTF8") is (not finding["do"])


def test_notifications_come_back(run: Run, pg_url: str) -> None:
    [finding] = findings(run, pg_url, "listener")
    assert (finding["severity"], "came back" in finding["seen"]) == ("ok", True)


def test_a_pooler_that_drops_notifications(
    run: Run, pg_url: str, pgbouncer: PgBouncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pgbouncer.start()
    pooled = pgbouncer.url(pg_url.rpartition("/")[2])
    monkeypatch.setattr("holdfast.cli.checks.ECHO_SECONDS", 0.3)
    finding = trouble(run, pooled, "listener")
    assert "PgBouncer" in finding["seen"]
    assert "HOLDFAST_LISTEN_URL" in finding["do"]
    monkeypatch.setenv("HOLDFAST_LISTEN_URL", pg_url)
    [finding] = findings(run, pooled, "listener")
    assert finding["severity"] == "ok"


def test_what_the_database_refuses_is_a_finding(run: Run, store: Store, url: str) -> None:
    with store.link() as link:
        link.raw.execute("alter table holdfast_workers rename to elsewhere")
    finding = trouble(run, url, "workers")
    assert finding["seen"].startswith("could not be looked at")
    assert "--skip workers" in finding["do"]


def test_an_unknown_check_cannot_be_skipped(run: Run, app: str, url: str) -> None:
    run("doctor", "--url", url, "--skip", "weather", code=2)


def test_two_applications_with_tables_and_a_kind_in_common_are_told(run: Run, app: str, store: Store) -> None:
    def beat(worker: str, packages: list[str], *kinds: str) -> None:
        info = {"queues": ["mail"], "kinds": list(kinds), "packages": packages}
        store.run(registry.beat(worker, json.dumps(info)))

    beat("one", ["shop"], "send", "pay")
    beat("two", ["shop"], "send")
    beat("three", ["blog"], "post")
    beat("four", [], "send")
    assert "takes jobs of the other" not in run("doctor", "--app", app).stdout
    beat("five", ["blog"], "send")
    [told] = [line for line in run("doctor", "--app", app, code=7).stdout.splitlines() if "jobs of the other" in line]
    assert "one runs shop and five runs blog, and both handle send" in " ".join(told.split())


def test_doctor_says_which_right_it_lacks_on_mariadb(run: Run, mariadb: MariaDB, mariadb_url: str) -> None:
    database = mariadb_url.rpartition("/")[2]
    with closing(Store(mariadb_url)) as store:
        for sql in (
            "create user if not exists 'little'@'%' identified by 'pw'",
            f"grant all on `{database}`.* to 'little'@'%'",
        ):
            with store.link() as link, link.raw.cursor() as cursor:
                cursor.execute(sql)
    url = re.sub(r"//[^@]*@", "//little:pw@", mariadb_url)
    run("migrate", "apply", "--url", url)
    told = " ".join(run("doctor", "--url", url, code=7).stdout.split())
    assert "could not be looked at: (1227, 'Access denied; you need (at least one of) the PROCESS privilege(s)" in told
    assert "let an administrator `grant process on *.* to the user of this URL`" in told
