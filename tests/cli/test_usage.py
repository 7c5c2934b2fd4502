"""How the command line meets wrong input: one line that helps, a documented exit code, and never a password."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest
from click.testing import CliRunner

from holdfast import __version__
from holdfast.cli import main, shared
from holdfast.errors import Conflict, DatabaseUnavailable
from tests.cli.conftest import Run, add
from tests.servers import free_port

SECRET = "hunter2-xyzzy"


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that can be typed, by its words."""

    def walk(words: tuple[str, ...], command: click.Command) -> Iterator[tuple[str, click.Command]]:
        if isinstance(command, click.Group):
            ctx = click.Context(command)
            for name in command.list_commands(ctx):
                below = command.get_command(ctx, name)
                assert below is not None
                yield " ".join((*words, name)), below
                yield from walk((*words, name), below)

    return walk((), main)


@pytest.mark.parametrize("words", [words for words, _ in commands()])
def test_every_command_has_help_with_an_example(run: Run, words: str) -> None:
    shown = run(*words.split(), "--help").stdout
    assert "Example:" in shown
    assert f"holdfast {words.split()[0]}" in shown.partition("Example:")[2]
    assert "\\b" not in shown, "the mark that keeps the lines of an example apart is doubled"


def test_json_is_a_flag_wherever_it_can_be_said() -> None:
    found = [(words, one) for words, command in commands() for one in command.params if "--json" in one.opts]
    assert len(found) > 40
    assert [words for words, one in found if not (isinstance(one, click.Option) and one.is_flag)] == []


@pytest.mark.parametrize("words", [words for words, command in commands() if isinstance(command, click.Group)])
def test_a_group_lists_its_commands_by_whole_sentences(run: Run, words: str) -> None:
    listed = run(*words.split(), "--help").stdout.partition("Commands:")[2]
    assert listed
    assert "..." not in listed


def test_help_is_shown_in_one_screen_and_names_the_exit_codes(run: Run) -> None:
    shown = run("--help").stdout
    assert len(shown.splitlines()) <= 52
    assert all(len(line) <= 80 for line in shown.splitlines())
    codes = " ".join(shown.split()).partition("Exit codes: ")[2]
    assert [int(one.split()[0]) for one in codes.split(", ")] == list(shared.Exit)
    assert "..." not in shown.partition("Commands:")[2].partition("Start here")[0]


def test_the_version_is_told(run: Run) -> None:
    assert run("--version").stdout == f"holdfast {__version__}\n"


def test_an_unknown_command_is_wrong_usage(run: Run) -> None:
    assert "No such command 'frob'" in run("frob", code=2).stderr


def test_a_misspelt_command_is_asked_for(run: Run) -> None:
    assert "did you mean worker" in run("wroker", code=2).stderr
    assert run("jobs", "lits", code=2).stderr.lower().count("did you mean") == 1


def test_an_application_in_the_place_of_no_argument_is_told_to_be_an_option(run: Run) -> None:
    assert "hint: say --app shop:hf" in run("jobs", "list", "shop:hf", code=2).stderr
    assert "hint: say --app shop:hf" in run("migrate", "apply", "shop:hf", code=2).stderr
    assert "--app" not in run("jobs", "list", "shop", code=2).stderr
    assert "--app" not in run("worker-alive", "file", "shop:hf", code=2).stderr


@pytest.mark.parametrize(
    "words",
    [
        "enqueue APP send_receipt order_id=1",
        "enqueue send_receipt order_id=1 --app APP",
        "enqueue --app=APP send_receipt order_id=1",
        "--app APP enqueue send_receipt order_id=1",
        "enqueue --app APP APP send_receipt order_id=1",
        "HOLDFAST_APP enqueue send_receipt order_id=1",
        "HOLDFAST_APP enqueue APP send_receipt --queue other:queue order_id=1",
        "queues adopt APP --yes",
        "queues adopt --yes --app APP",
        "HOLDFAST_APP queues adopt --yes",
        "schedules sync APP",
        "schedules sync --app APP",
        "prune APP --dry-run",
        "prune --dry-run --app APP",
        "HOLDFAST_APP prune --dry-run",
        "HOLDFAST_APP schedules list",
        "top APP --once",
        "top --once --app APP",
    ],
)
def test_app_is_an_argument_or_an_option_or_in_the_environment(run: Run, app: str, words: str) -> None:
    typed = words.split()
    if typed[0] == "HOLDFAST_APP":
        os.environ[typed.pop(0)] = app
    run(*(word.replace("APP", app) for word in typed))


@pytest.mark.parametrize("words", ["worker", "relay", "queues adopt", "schedules sync"])
def test_an_application_that_nobody_names_is_asked_for_in_every_form(run: Run, words: str) -> None:
    said = run(*words.split(), code=2).stderr
    assert f"hint: holdfast {words} shop:hf, or --app shop:hf, or set HOLDFAST_APP" in said


def in_a_framework(*words: str) -> str:
    known = shared.Settings(app="holdfast.django:hf", program="manage.py holdfast", migrate="manage.py migrate")
    return CliRunner().invoke(main, words, obj=known, prog_name="manage.py holdfast").output


@pytest.mark.parametrize("words", [words for words, _ in commands()])
def test_help_in_a_framework_shows_what_can_be_typed_there(words: str) -> None:
    shown = in_a_framework(*words.split(), "--help")
    told, _, more = shown.partition("Example:")
    examples = more.partition("Options:")[0]
    assert f"manage.py holdfast {words.split()[0]}" in examples
    assert re.findall(r"(?<!manage\.py )holdfast [a-z]|shop:hf|--app|--url", examples) == []
    assert re.findall(r"\bAPP\b|shop:hf", told) == []


def test_the_beginning_in_a_framework_is_what_can_be_typed_there(run: Run) -> None:
    shown = in_a_framework("--help")
    assert "manage.py migrate  " in shown
    assert "manage.py holdfast worker  " in shown
    begin = shown.partition("Start here")[2]
    assert re.findall(r"shop|HOLDFAST_URL|(?<!manage\.py )holdfast (?:demo|init|worker)", begin) == []
    assert "holdfast worker shop:hf" in run("--help").stdout


def test_help_outside_of_a_framework_stays_as_it_is(run: Run) -> None:
    in_a_framework("worker", "--help")
    assert "holdfast worker shop:hf --queues" in run("worker", "--help").stdout


def test_a_framework_needs_no_application_to_be_named() -> None:
    assert "leave it out" in in_a_framework("jobs", "list", "shop:hf")


def test_a_state_that_there_is_not_is_told_by_its_option(run: Run, url: str) -> None:
    run("migrate", "apply", "--url", url)
    assert "error: --state: must be among" in run("jobs", "list", "--state", "finished", "--url", url, code=2).stderr


@pytest.mark.parametrize("password", [SECRET, f"@{SECRET}", f"{SECRET}/x", f"a b{SECRET}", f"100%{SECRET}"])
@pytest.mark.parametrize(
    "words",
    [
        ("{}",),
        ("migrate", "apply", "{}"),
        ("jobs", "list", "--limit", "{}"),
        ("jobs", "{}"),
        ("worker", "{}"),
        ("-v", "migrate", "check", "--url", "{}"),
        ("-v", "doctor", "--url", "{}"),
    ],
)
def test_a_url_that_cannot_be_read_or_stands_in_a_wrong_place_is_not_repeated(
    run: Run, words: tuple[str, ...], password: str
) -> None:
    url = f"postgresql://ann:{password}@127.0.0.1:{free_port()}/shop"
    result = CliRunner().invoke(main, [word.format(url) for word in words], prog_name="holdfast")
    assert result.exit_code in (2, 4)
    assert SECRET not in result.output + result.stderr


def test_without_a_database_it_says_how_to_name_one(run: Run) -> None:
    told = run("jobs", "list", code=2).stderr
    assert "no database was named" in told
    assert "--url" in told
    assert "HOLDFAST_URL" in told


@pytest.mark.parametrize(
    "name, told",
    [
        ("shop", "APP must be module:attribute"),
        (":hf", "APP must be module:attribute"),
        ("shop:", "APP must be module:attribute"),
        ("shp:hf", "did you mean shop?"),
        ("nothing_like_it:hf", "there is no module 'nothing_like_it' (looked in "),
        ("shop.inner:hf", "there is no module 'shop.inner'"),
        ("shop:fh", "did you mean shop:hf?"),
        ("shop:queue_of_nothing", "did you mean shop:hf?"),
        ("shop:number", "shop:number is of type int, not a Holdfast object"),
        ("shop:greet", "is of type Handler"),
        ("broken:hf", "importing broken failed: ZeroDivisionError"),
        ("needy:hf", "importing needy failed: No module named 'not_installed_anywhere'"),
        ("quitter:hf", "importing quitter failed: SystemExit"),
        ("urlless:hf", "set HOLDFAST_URL"),
    ],
)
@pytest.mark.parametrize("words", [("jobs", "list", "--app"), ("worker",), ("prune",), ("migrate", "apply", "--app")])
def test_an_app_that_cannot_be_had_is_named(
    run: Run, app: str, place: Path, words: tuple[str], name: str, told: str
) -> None:
    (place / "broken.py").write_text("1 / 0")
    (place / "needy.py").write_text("import not_installed_anywhere")
    (place / "quitter.py").write_text("raise SystemExit(3)")
    (place / "urlless.py").write_text("from holdfast import Holdfast\nhf = Holdfast()")
    shown = run(*words, name, code=2).stderr
    assert told in shown
    assert "Traceback" not in shown


def test_the_database_options_stand_before_or_after_the_command(run: Run, app: str, url: str) -> None:
    before = run("--url", url, "jobs", "list").stderr
    assert before == run("jobs", "list", "--url", url).stderr == run("--app", app, "jobs", "list").stderr


def test_an_argument_beats_the_environment(run: Run, app: str, url: str) -> None:
    environment = {"HOLDFAST_URL": "sqlite:///elsewhere.db"}
    assert "elsewhere.db" in run("jobs", "list", env=environment, code=3).stderr
    run("jobs", "list", "--url", url, env=environment)
    run("jobs", "list", "--app", app, env=environment)


def test_the_environment_may_name_the_application(run: Run, app: str) -> None:
    run("jobs", "list", env={"HOLDFAST_APP": app})


def test_a_url_beside_an_app_that_has_its_own_is_refused(run: Run, app: str) -> None:
    told = run("enqueue", app, "greet", "name=Ada", "--url", "sqlite:///other.db", code=2).stderr
    assert "shop:hf sets its own url" in told


def test_an_app_that_reads_the_environment_takes_the_url(run: Run, app: str, url: str, place: Path) -> None:
    (place / "free.py").write_text("from holdfast import Holdfast\nhf = Holdfast()\n@hf.job\ndef f() -> None: ...\n")
    run("enqueue", "free:hf", "f", "--url", url)


def test_prefix_and_schema_are_checked(run: Run, url: str) -> None:
    assert "prefix" in run("migrate", "plan", "--url", url, "--prefix", "x; drop table", code=2).stderr
    assert "SQLite has no schemas" in run("migrate", "plan", "--url", url, "--schema", "s", code=2).stderr


@pytest.mark.parametrize("bad", ["nonsense", "redis://localhost", "postgresql://u@h:port/x", "sqlite:/x.db", "://"])
def test_a_url_that_cannot_be_read_is_wrong_usage(run: Run, bad: str) -> None:
    assert "url" in run("jobs", "list", "--url", bad, code=2).stderr


READERS = ("jobs list", "dead list", "dead groups", "workers", "dead replay --all", "prune --older-than 1d")


@pytest.mark.parametrize("words", READERS)
def test_without_tables_it_says_what_to_run_and_creates_nothing(run: Run, place: Path, words: str) -> None:
    told = run(*words.split(), "--url", "sqlite:///nothing.db", code=3).stderr
    assert "holdfast migrate apply" in told
    assert not (place / "nothing.db").exists()
    (place / "empty.db").touch()
    assert "holdfast migrate apply" in run(*words.split(), "--url", "sqlite:///empty.db", code=3).stderr


def test_a_missing_folder_of_the_file_is_told(run: Run, place: Path) -> None:
    there = ("--url", "sqlite:///data/shop.db")
    assert (
        f"hint: make the folder {place / 'data'}; then `holdfast migrate apply"
        in run("jobs", "list", *there, code=3).stderr
    )
    assert f"there is no folder {place / 'data'}" in run("migrate", "apply", *there, code=4).stderr


def test_commands_in_hints_can_be_typed_as_they_stand(
    run: Run, app: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = run("workers", "--app", app).stderr
    assert f"`holdfast worker {app}`" in told
    assert f"`holdfast dead list --app {app}`" in run("dead", "replay", "--kind", "x", "--app", app, code=5).stderr
    hint = "`holdfast migrate apply --url sqlite:///nothing.db --prefix shop` creates it"
    assert hint in run("jobs", "list", "--url", "sqlite:///nothing.db", "--prefix", "shop", code=3).stderr
    (place / "empty.db").touch()
    told = run("jobs", "list", "--url", "sqlite:///empty.db", code=3).stderr
    assert "Run `holdfast migrate apply --url sqlite:///empty.db`." in told
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///empty.db")
    assert "Run `holdfast migrate apply`." in run("jobs", "list", code=3).stderr


def test_a_hint_names_the_application_and_what_was_typed_beside_it(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 'from holdfast import Holdfast\n\nhf = Holdfast("sqlite:///own.db", prefix="own")\n'
    (place / "own.py").write_text(made)
    # A URL alone would make the tables under another prefix than the application's.
    assert "`holdfast migrate apply --app own:hf` creates it" in run("worker", "own:hf", code=3).stderr
    (place / "own.db").touch()
    assert "Run `holdfast migrate apply --app own:hf`." in run("worker", "own:hf", code=3).stderr
    assert "Run `holdfast migrate apply --app own:hf`." in run("jobs", "list", "--app", "own:hf", code=3).stderr
    (place / "told.py").write_text("from holdfast import Holdfast\n\nhf = Holdfast()\n")
    told = run("worker", "told:hf", "--url", "sqlite:///own.db", "--prefix", "own", code=3).stderr
    assert "Run `holdfast migrate apply --app told:hf --url sqlite:///own.db --prefix own`." in told
    monkeypatch.setenv("HOLDFAST_APP", "own:hf")
    assert "Run `holdfast migrate apply`." in run("worker", code=3).stderr


def test_a_password_is_in_no_hint(run: Run, pg_url: str) -> None:
    parts = urlsplit(pg_url)
    url = parts._replace(netloc=f"{parts.username}:{SECRET}@{parts.hostname}:{parts.port}").geturl()
    told = run("jobs", "list", "--url", url, code=3).stderr
    assert "Run `holdfast migrate apply --app module:attribute`." in told
    assert SECRET not in told


@pytest.mark.parametrize("words", [*READERS, "migrate check", "migrate apply", "doctor"])
def test_a_database_that_is_down_is_told_without_its_password(run: Run, words: str) -> None:
    url = f"postgresql://app:{SECRET}@127.0.0.1:{free_port()}/shop"
    result = run(*words.split(), "--url", url, code=4)
    assert "cannot be reached" in result.stderr
    assert "postgresql://app:***@127.0.0.1" in result.stderr
    assert SECRET not in result.output


def test_a_user_that_the_database_refuses_is_told_without_the_password(run: Run, pg_url: str) -> None:
    host = pg_url.rpartition("@")[2]
    for extra in ((), ("-v",)):
        result = run("jobs", "list", "--url", f"postgresql://stranger:{SECRET}@{host}", *extra, code=4)
        assert "stranger" in result.stderr
        assert SECRET not in result.output


def test_a_traceback_needs_v_and_hides_the_password(run: Run) -> None:
    url = f"postgresql://app:{SECRET}@127.0.0.1:{free_port()}/shop"
    assert "Traceback" not in run("jobs", "list", "--url", url, code=4).stderr
    told = run("jobs", "list", "--url", url, "-v", code=4).stderr
    assert "Traceback" in told
    assert SECRET not in told


def test_what_nobody_expected_is_one_line_and_code_1(run: Run, app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise TypeError(f"about postgresql://app:{SECRET}@host/db")

    monkeypatch.setattr("holdfast.admin.desk.look", broken)
    told = run("jobs", "list", "--app", app, code=1).stderr
    assert told.startswith("error: TypeError: about postgresql://app:***@host/db\n")
    assert "-v" in told
    assert "Traceback" in run("jobs", "list", "--app", app, "-v", code=1).stderr


def test_a_missing_driver_says_what_to_install(run: Run, app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    told = run("jobs", "list", "--url", "postgresql://app@127.0.0.1/x", code=2).stderr
    assert told.startswith("error: The driver psycopg cannot be imported: ")
    assert 'pip install "holdfast-db[postgres]"' in told


def test_every_exit_code_has_its_error() -> None:
    assert shared.failure_of(Conflict("no")).exit_code == shared.Exit.CONFLICT
    assert shared.failure_of(DatabaseUnavailable()).exit_code == shared.Exit.UNAVAILABLE


def test_a_password_is_hidden_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://app:s%40fe-word@host/db")
    assert shared.hidden("login with s@fe-word or s%40fe-word failed") == "login with *** or *** failed"
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://app:shop@host/db")
    assert shared.hidden("shopping in shop") == "shopping in ***"
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://app:s%40fe-word@[::1]:1,[::2]:2/db")
    assert shared.hidden("login with s@fe-word or s%40fe-word failed") == "login with *** or *** failed"
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://app@a,b/db?password=s%40fe-word")
    assert shared.hidden("login with s@fe-word or s%40fe-word failed") == "login with *** or *** failed"


@pytest.fixture
def typed(place: Path) -> list[str]:
    source = str(Path(shared.__file__).parents[2])
    return [sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r}); from holdfast.cli import main; main()"]


def test_as_a_process_it_keeps_errors_and_results_apart(typed: list[str], app: str, url: str) -> None:
    good = subprocess.run([*typed, "migrate", "check", "--url", url], capture_output=True, text=True, check=False)
    assert (good.returncode, good.stderr) == (0, "")
    bad = subprocess.run([*typed, "jobs", "show", "x", "--app", app], capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout) == (5, "")
    assert bad.stderr.startswith("error: There is no job 'x'")


def test_a_pipe_that_closes_early_is_no_error(typed: list[str], store: object, url: str) -> None:
    add(store, 2000)  # type: ignore[arg-type]
    reader = f"{' '.join(map(_quoted, typed))} jobs list --limit 5000 --url {url} | head -1"
    done = subprocess.run(["bash", "-c", reader], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("ID")
    assert "Traceback" not in done.stderr


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def test_a_terminal_without_unicode_shows_escapes(typed: list[str], app: str, url: str) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    subprocess.run([*typed, "enqueue", app, "tea→cup", "--no-check"], env=environment, capture_output=True, check=True)
    shown = subprocess.run(
        [*typed, "jobs", "list", "--url", url], env=environment, capture_output=True, text=True, check=True
    )
    assert "tea\\u2192cup" in shown.stdout
