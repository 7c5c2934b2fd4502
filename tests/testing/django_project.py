"""A Django project in the middle of its tests, with a Holdfast on the database of development, and one on the tests'.

Called with the engine and the URL of the database of development. Prints what `run_due` did there.
"""

import json
import sys
from typing import Any
from urllib.parse import urlsplit

import django
import pymysql
from django.conf import settings
from django.test.utils import setup_databases, setup_test_environment, teardown_databases, teardown_test_environment

from holdfast import Holdfast
from holdfast.errors import ConfigError
from holdfast.testing.inline import run_due

engine, url = sys.argv[1:]
place = urlsplit(url)
name = url.removeprefix("sqlite:///") if engine == "sqlite3" else place.path[1:]
server = {"USER": place.username, "PASSWORD": place.password or "", "HOST": place.hostname, "PORT": place.port}
database: dict[str, Any] = {"ENGINE": f"django.db.backends.{engine}", "NAME": name}
database |= {} if engine == "sqlite3" else server
if engine != "postgresql":
    database["TEST"] = {"NAME": f"{name}_for_tests"}
if engine == "mysql":
    # Django knows mysqlclient only, of a version that PyMySQL does not name by itself.
    pymysql.version_info = (2, 2, 1, "final", 0)  # type: ignore[assignment]
    pymysql.install_as_MySQLdb()
settings.configure(DATABASES={"default": database}, USE_TZ=True)
django.setup()

told: dict[str, Any] = {}


def attempt(what: str, app: Holdfast, **options: Any) -> None:
    try:
        told[what] = [ran.result for ran in run_due(app, **options)]
    except ConfigError as error:
        told[what] = str(error)


def shop(at: str) -> Holdfast:
    app = Holdfast(at)
    app.migrate()

    @app.job
    def greet() -> str:
        return "hello"

    greet.enqueue()
    return app


development = shop(url)
setup_test_environment()
attempt("before a test asked for its database", development)
old = setup_databases(verbosity=0, interactive=False)
attempt("development", development)
test_name = str(django.db.connection.settings_dict["NAME"])
tests = shop(url.replace(name, test_name))
attempt("tests", tests)
tests.close()
memory = shop("sqlite:///:memory:")
attempt("memory", memory)
memory.close()
attempt("own database", development, own_database=True)
teardown_databases(old, verbosity=0)
teardown_test_environment()
development.handlers["greet"].enqueue()
attempt("after the tests", development)
development.close()
print(json.dumps(told))
