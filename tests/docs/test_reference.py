"""The reference pages list what the code has, no more and no less."""

import inspect
import logging
import re
from pathlib import Path

import pytest

import holdfast
import holdfast.celery
from holdfast import errors, events
from holdfast.celery import AsyncResult, Celery, Task
from holdfast.events import Event
from holdfast.foreign import AirlockOutbox, DurableSteps, Foreign, PdoQueue
from holdfast.life.source import Source
from holdfast.store.dialects.base import SCHEMA_VERSION, tables_of
from holdfast.values import options
from holdfast.worker import Worker

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
API, CONFIGURATION, ERRORS, EVENTS, SCHEMA = (
    (REFERENCE / f"{name}.md").read_text("utf-8") for name in ("api", "configuration", "errors", "events", "schema")
)


def classes(module, base) -> list[type]:
    found = [value for value in vars(module).values() if inspect.isclass(value) and issubclass(value, base)]
    return [cls for cls in found if cls.__module__ == module.__name__ and not cls.__name__.startswith("_")]


def members(cls) -> list[str]:
    """List the methods and properties of a class."""
    found = {name: value for name, value in vars(cls).items() if not name.startswith("_")}
    return [name for name, value in found.items() if inspect.isfunction(value) or isinstance(value, property)]


def row(page: str, name: str) -> list[str]:
    """Read the cells of the table row that starts with a name in backticks."""
    found = re.findall(rf"^\| `{name}` \|(.*)\|$", page, re.MULTILINE)
    assert len(found) == 1, f"{name} has {len(found)} rows"
    return [cell.strip() for cell in found[0].split("|")]


EVENT_CLASSES = [Event, *classes(events, Event)]


@pytest.mark.parametrize("name", holdfast.__all__)
def test_every_public_name_is_in_the_api(name):
    assert f"`{name}`" in API or f"`{name}(" in API or f"`{name}[" in API


def test_every_public_name_for_those_who_come_from_celery_is_in_the_api():
    [section] = re.findall(r"^## holdfast\.celery\n(.*?)^## ", API, re.MULTILINE | re.DOTALL)
    names = [name for name, value in vars(holdfast.celery).items() if name[0] != "_" and not inspect.ismodule(value)]
    assert len(names) > 15
    assert [name for name in names if not re.search(rf"`{name}\b", section)] == []
    told = {name for one in (Task, AsyncResult, Celery) for name in members(one)}
    apart = {"entry", "bound", "arguments", "check", "add", "always_eager", "eager_propagates", "config_from_object"}
    assert {name for name in told - apart if not re.search(rf"\b{name}\b", section)} <= {"status", "info", "wait"}


@pytest.mark.parametrize("cls", classes(errors, Exception), ids=lambda cls: cls.__name__)
def test_every_error_has_its_section(cls):
    assert cls is errors.HoldfastError or re.search(rf"^### {cls.__name__}$", ERRORS, re.MULTILINE)


def test_the_tree_of_errors_is_the_one_in_the_code():
    drawn = [line.split("──")[1].split()[0] for line in (errors.__doc__ or "").splitlines() if "──" in line]
    assert drawn == [line.split("──")[1].split()[0] for line in ERRORS.splitlines() if "──" in line]


@pytest.mark.parametrize("cls", EVENT_CLASSES, ids=lambda cls: cls.__name__)
def test_every_event_has_its_row(cls):
    level, told, when = row(EVENTS, cls.__name__)
    own = list(cls.__struct_fields__)
    if issubclass(cls, events.JobEvent) and cls is not events.JobEvent:
        own = [name for name in own if name not in events.JobEvent.__struct_fields__]
    assert level.upper() == logging.getLevelName(cls.level)
    assert re.findall(r"`(\w+)`", told) == own
    assert when


def test_no_event_is_listed_that_does_not_exist():
    listed = set(re.findall(r"^\| `([A-Z]\w+)` \|", EVENTS, re.MULTILINE))
    assert listed == {cls.__name__ for cls in EVENT_CLASSES}


def as_written(default) -> str:
    """Write a default as the tables do."""
    if isinstance(default, float):
        return str(int(default)) if default.is_integer() else f"{default:g}"
    return {None: "none", True: "true", False: "false"}.get(default, str(default))


@pytest.mark.parametrize("name, default", vars(options.StoreOptions()).items())
def test_every_option_of_the_store_has_its_row(name, default):
    environment, shown, _ = row(CONFIGURATION, name)
    assert environment == f"`HOLDFAST_{name.upper()}`"
    assert shown.strip("`") == as_written(default)


@pytest.mark.parametrize("name", ["tx", "notify", *options.EnqueueKeywords.__annotations__])
def test_every_option_of_an_enqueue_is_in_the_api(name):
    told = API.partition("| Option of `using` |")[2].partition("\n\n")[0]
    assert re.search(rf"^\|[^|]*`{name}`[^|]*\|", told, re.MULTILINE)


def test_what_a_worker_takes_is_in_the_api_with_its_defaults():
    takes = [p for p in inspect.signature(Worker).parameters.values() if p.kind is p.KEYWORD_ONLY]
    shown = ", ".join(f"{p.name}={p.default}" for p in takes)
    assert f"`hf.worker(*, {shown})`" in API


@pytest.mark.parametrize("member", members(holdfast.Job))
def test_every_member_of_the_job_is_in_the_api(member):
    assert f"`{member}`" in API or f"`{member}(" in API


@pytest.mark.parametrize("member", members(holdfast.Bulk))
def test_every_member_of_the_bulk_is_in_the_api(member):
    [section] = re.findall(r"^## Bulk\n(.*?)^## ", API, re.MULTILINE | re.DOTALL)
    assert f"`{member}`" in section or f"`{member}(" in section


@pytest.mark.parametrize("cls", [PdoQueue, DurableSteps, AirlockOutbox])
def test_every_member_of_the_foreign_tables_is_in_the_api(cls):
    told = API.partition("## Foreign tables")[2].partition("\n## ")[0]
    own = [name for name in members(cls) if name not in members(Source)]
    assert own
    assert [name for name in own if f"`{name}(" not in told and f"`{name}`" not in told] == []


@pytest.mark.parametrize(
    "cls, maker",
    [(PdoQueue, Foreign.pdo), (DurableSteps, Foreign.durable), (AirlockOutbox, Foreign.airlock)],
)
def test_every_setting_of_the_foreign_tables_is_told(cls, maker):
    page = {PdoQueue: "pdo", DurableSteps: "durable-transport", AirlockOutbox: "airlock"}[cls]
    contract = (REFERENCE.parent / "contracts" / f"{page}.md").read_text("utf-8")
    for name, setting in list(inspect.signature(maker).parameters.items())[1:]:
        assert f"{name}={setting.default!r}".replace("'", '"') in API.replace("\n", " ")
        assert f"`{name}`" in contract


@pytest.mark.parametrize("table", tables_of("postgres"))
def test_every_table_has_its_section(table):
    assert f"## holdfast_{table}\n" in SCHEMA


@pytest.mark.parametrize("dialect", ["postgres", "mysql", "sqlite"])
def test_every_column_is_in_the_schema(dialect):
    folder = Path(holdfast.__file__).parent / "store" / "dialects" / "migrations" / dialect
    ddl = "".join(file.read_text("utf-8") for file in folder.glob("*.sql"))
    made = "".join(re.findall(r"^create table.*?^\)", ddl, re.MULTILINE | re.DOTALL))
    columns = set(re.findall(r"^    `?(\w+)`? \w+", made, re.MULTILINE)) - {"primary", "index", "unique"}
    columns |= set(re.findall(r"add column (\w+)", ddl)) - {"if"}
    assert columns
    assert {name for name in columns if f"`{name}`" not in SCHEMA} == set()


def test_a_migration_script_that_is_copied_from_the_guide_makes_the_present_tables():
    guide = (REFERENCE.parent / "guides" / "sqlalchemy.md").read_text("utf-8")
    versions = re.findall(r"\bto=(\w+)", guide)
    assert len(versions) >= 2
    assert set(versions) == {str(SCHEMA_VERSION)}
