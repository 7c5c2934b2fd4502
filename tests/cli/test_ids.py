"""Ids by their beginnings, and what a list shows in a narrow terminal."""

import inspect
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import click
import pytest
from rich.console import Console

from holdfast import Retry, admin
from holdfast.bench.measure import Size
from holdfast.bench.studies import Scale
from holdfast.cli import main, runs
from holdfast.cli import outbox as outbox_commands
from holdfast.cli.jobs import job_table
from holdfast.cli.render import Column, beginnings, write_table
from holdfast.demo import outbox, story
from holdfast.store import Store
from holdfast.values.expires import EXPIRES_HEADER
from holdfast.values.ids import id_beginning
from holdfast.values.options import HandlerOptions, StoreOptions
from holdfast.worker import Worker
from tests.cli.conftest import Run, add, kill, lines
from tests.cli.test_usage import commands

EARLY, LATE, LATER = (
    "01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f",
    "01997a3e-5b1d-7d20-8f4e-0a1b2c3d4e5f",
    "01997a3e-5b1d-7d21-8f4e-0a1b2c3d4e5f",
)


@pytest.fixture
def beginning(store: Store) -> str:
    """What the id of the only job begins with."""
    [job_id] = add(store)
    return job_id[:13]


def test_a_job_is_named_by_the_beginning_of_its_id(run: Run, app: str, beginning: str) -> None:
    [job] = lines(run("jobs", "show", beginning, "--app", app, "--json"))
    assert job["id"].startswith(beginning)
    assert job["id"] in run("jobs", "retry", beginning.upper().replace("-", ""), "--app", app).stdout
    assert [one["id"] for one in lines(run("jobs", "list", "--id", beginning, "--app", app, "--json"))] == [job["id"]]
    run("jobs", "cancel", beginning, "--yes", "--app", app)
    assert run("jobs", "wait", beginning, "--timeout", "0", "--app", app, code=9).stdout == ""


def test_a_whole_id_may_be_written_without_hyphens(run: Run, app: str, store: Store) -> None:
    job_id, _ = add(store, 2)
    bare = job_id.replace("-", "")
    [job] = lines(run("jobs", "show", bare, "--app", app, "--json"))
    assert job["id"] == job_id
    assert job_id in run("jobs", "retry", bare.upper(), "--app", app).stdout
    assert "no job" in run("jobs", "show", "f" * 32, "--app", app, code=5).stderr


def test_nothing_is_retried_where_one_of_the_ids_could_be_several(run: Run, app: str, store: Store) -> None:
    [dead] = kill(store)
    first, second = sorted(add(store, 2))
    common = first[: next(n for n in range(36) if first[n] != second[n])].rstrip("-")
    assert "several ids begin with" in run("jobs", "retry", dead, common, "--app", app, code=2).stderr
    [job] = lines(run("jobs", "show", dead, "--app", app, "--json"))
    assert job["state"] == "dead"


def test_a_dead_letter_is_named_by_the_beginning_of_its_id(run: Run, app: str, store: Store) -> None:
    [dead] = kill(store)
    assert dead in run("dead", "show", dead[:15], "--app", app).stdout
    run("dead", "replay", "--id", dead[:15], "--app", app)
    [job] = lines(run("jobs", "show", dead, "--app", app, "--json"))
    assert job["state"] == "pending"


def test_a_beginning_of_several_ids_is_refused_and_one_of_none_is_not_found(run: Run, app: str, store: Store) -> None:
    first, second = sorted(add(store, 2))
    common = first[: next(n for n in range(36) if first[n] != second[n])].rstrip("-")
    told = run("jobs", "cancel", common, "--yes", "--app", app, code=2).stderr
    assert f"several ids begin with {common}: {first}, {second}" in told
    assert "no job" in run("jobs", "show", "ffffffff", "--app", app, code=5).stderr
    assert "no job" in run("jobs", "show", "abc", "--app", app, code=5).stderr


@pytest.mark.parametrize(
    "typed, read",
    [
        ("01997A3E5b1c7", "01997a3e-5b1c-7"),
        ("01997a3e-", "01997a3e"),
        ("019", None),
        (EARLY, None),
        (EARLY.upper(), None),
        (EARLY.replace("-", ""), EARLY),
        (EARLY.replace("-", "") + "0", None),
        ("17 orders", None),
    ],
)
def test_what_begins_an_id_is_written_as_ids_are(typed: str, read: str | None) -> None:
    assert id_beginning(typed) == read


def test_ids_are_cut_to_what_tells_them_apart() -> None:
    assert beginnings([EARLY, LATE]) == ["01997a3e-5b1c", "01997a3e-5b1d"]
    assert beginnings([LATE, LATER]) == ["01997a3e-5b1d-7d20", "01997a3e-5b1d-7d21"]
    assert beginnings(["17", "18"]) == ["17", "18"]


@pytest.mark.parametrize("width, shown", [(80, "01997a3e-5b1c"), (200, EARLY)])
def test_a_narrow_terminal_has_short_ids_and_whole_kinds(width: int, shown: str) -> None:
    drawn = io.StringIO()
    columns = [Column("id", whole=True, ids=True), Column("kind"), Column("last error", spare=True)]
    row = [EARLY, "send_a_reminder_of_an_unpaid_invoice", "ConnectionError: away"]
    write_table(Console(file=drawn, width=width), columns, [row])
    last = drawn.getvalue().splitlines()[-1]
    assert last.split() == [shown, row[1], "ConnectionError:", "away"]


KIND, QUEUE = "send_a_reminder_of_an_unpaid_invoice", "reminders_of_the_accounting_department"


@pytest.mark.parametrize(
    "kind, queue, expires, left_out",
    [("greet", "mail", False, []), (KIND, QUEUE, False, ["queue"]), (KIND, QUEUE, True, ["queue", "age"])],
)
def test_jobs_at_80_columns_say_how_they_failed_and_what_is_not_shown(
    kind: str, queue: str, expires: bool, left_out: list[str], store: Store
) -> None:
    add(store)
    [job] = store.run(admin.list_jobs(admin.Filter()))
    now = job.created_at + timedelta(minutes=12)
    headers = {EXPIRES_HEADER: (now + timedelta(hours=30)).isoformat()} if expires else None
    error = {"type": "ConnectionError", "message": "the mail server at mail.example does not answer"}
    due = now + timedelta(hours=2)
    job = replace(job, kind=kind, queue=queue, attempts=3, available_at=due, errors=[error], headers=headers)
    drawn = io.StringIO()
    write_table(Console(file=drawn, width=80), *job_table([job], now))
    heads, _, line, *notes = drawn.getvalue().splitlines()
    told = ["id", "state", "kind", "queue", "try", "age", "next", *(["expires"] if expires else []), "last error"]
    assert heads.split() == " ".join(title for title in told if title not in left_out).split()
    assert "in 2 h 0 m" in line
    assert re.search(r" Connection\S*( .*)?…$", line.rstrip())
    assert max(map(len, (heads, line))) <= 80
    assert " ".join(notes).partition(";")[0] == (
        f"not shown for want of room: {', '.join(left_out)}" if left_out else ""
    )


def drawn_at_80_columns(columns: Sequence[Column], *rows: Sequence[str]) -> list[str]:
    drawn = io.StringIO()
    write_table(Console(file=drawn, width=80), columns, rows)
    return drawn.getvalue().splitlines()


def test_runs_and_deliveries_at_80_columns_say_what_they_are() -> None:
    run = (EARLY, "fulfil_an_order@2", "waiting", "signal:payment", "2026-05-01 14:30:00+02:00")
    heads, _, line, note = drawn_at_80_columns(runs._COLUMNS, run)
    assert (heads.split(), line.split()) == (["run", "kind", "status", "waits", "for"], list(run[:4]))
    assert note.startswith("not shown for want of room: started;")
    delivery = (EARLY, "order.paid", "orders", "pending", "3", "3 m 12 s ago", "ConnectionError: the broker is away")
    _, _, line, *_ = drawn_at_80_columns(outbox_commands.COLUMNS, delivery)
    assert line.split()[:4] == [EARLY[:13], "order.paid", "orders", "pending"]
    assert "ConnectionE" in line


def test_a_list_says_when_a_job_runs_next_and_how_it_failed_last(run: Run, app: str, store: Store) -> None:
    run("enqueue", app, "greet", "name=Ada", "--delay", "90m")
    kill(store)
    heads, *shown = run("jobs", "list", "--app", app, "--oldest").stdout.splitlines()
    assert heads.split()[-3:] == ["NEXT", "LAST", "ERROR"]
    assert "in 1 h" in shown[0]
    assert shown[1].endswith("ValueError: no such order")


# What means nothing, or no limit, where it is not said: filters, keys and times of a job, files to write, changes to
# make, and where the database is, which has no default.
WITHOUT_DEFAULT = set(
    re.findall(
        r"--[a-z-]+",
        """
        --url --app --shards --store --queue --kind --key --group --event --error --since --until --worker --after
        --type --route --workflow --status --waits-for --attribute --host --delay --expires --idempotency-key
        --unique --wait --for --at --to-queue --to --cron --every --reason --slot --heartbeat-file --http --log-config
        --dialect --before --figures --page --study --allow-actions --password-file --token-file --trust-user-header
        --ordered --on-retry --on-dead --concurrency --rate --fair --key-concurrency --key-rate --across --priority
        """,
    )
)


def options() -> list[tuple[str, click.Option, str]]:
    """List the options that take one value and must not be said: with the command, and with their help."""
    found = []
    root = click.Context(main, **main.context_settings)
    for words, command in commands():
        context = click.Context(command, parent=root)
        chosen = [one for one in command.params if isinstance(one, click.Option) and not (one.is_flag or one.multiple)]
        records = [(one, one.get_help_record(context)) for one in chosen if not one.required]
        found += [(words, one, " ".join(record[1].split())) for one, record in records if record is not None]
    return found


def test_help_tells_defaults(run: Run) -> None:
    assert "[default: 50;" in run("jobs", "list", "--help").stdout.replace("\n", " ")
    found = options()
    silent = [(words, one.opts[0]) for words, one, help in found if "default" not in help]
    assert [(words, name) for words, name in silent if name not in WITHOUT_DEFAULT] == []
    assert {name for _, name in silent} == WITHOUT_DEFAULT
    # Only a change of these leaves something as it is; elsewhere there is a default.
    assert {words for words, name in silent if name == "--priority"} == {"jobs change"}
    assert {words for words, name in silent if name == "--concurrency"} == {"queues set"}
    for words, one, help in found:
        if isinstance(one.default, int | float | str):
            assert f"default: {one.default}" in help, (words, one.opts)


def test_help_tells_the_defaults_that_the_code_has() -> None:
    told = {(words, one.opts[0]): re.findall(r"\[default: (.*?)\]", help) for words, one, help in options()}
    assert told["demo", "--orders"] == [f"{story.ORDERS}, with --outbox {outbox.ORDERS}"]
    assert told["demo", "--workers"] == [f"{story.WORKERS}, with --outbox {outbox.RELAYS}"]
    rounds = f"{Size().rounds}, of a study {Scale().rounds}, with --quick {Size.quick().rounds}"
    assert (told["bench", "--rounds"], Scale.quick().rounds) == ([rounds], Size.quick().rounds)
    assert told["bench", "--jobs"] == [str(Scale().jobs)]
    assert told["bench", "--seconds"] == [f"{Scale().seconds:g}"]
    assert told["bench", "--finished"] == [str(Scale().finished)]
    handler = HandlerOptions()
    for command in ("enqueue", "schedules add"):
        assert told[command, "--priority"] == [f"the handler's, or {handler.priority}"]
        assert told[command, "--max-attempts"] == [f"the handler's, or {Retry().max_attempts}"]
    assert told["worker", "--lease"] == [f"the handler's, or {handler.lease:g}s"]
    at_once = inspect.signature(Worker).parameters["concurrency"].default
    assert told["worker", "--concurrency"] == [str(at_once)]
    # Each handler may hold a connection: the checklist for deployments asks for as many.
    assert StoreOptions().pool_size >= at_once
    assert {tuple(said) for (_, name), said in told.items() if name == "--prefix"} == {(StoreOptions().prefix,)}
