"""The settings of a project whose tests are ours: its database is the one at DJANGO_TEST_URL."""

import json
import os
from typing import Any
from urllib.parse import unquote, urlsplit

_place = urlsplit(os.environ["DJANGO_TEST_URL"])
_engine = {"sqlite": "sqlite3", "mariadb": "mysql"}.get(_place.scheme, _place.scheme)
_file = _place.path[1:]

if _engine == "mysql":
    import pymysql

    # Django knows mysqlclient only, of a version that PyMySQL does not name by itself.
    pymysql.version_info = (2, 2, 1, "final", 0)  # type: ignore[assignment]
    pymysql.install_as_MySQLdb()

_server: dict[str, Any] = {
    "NAME": _file,
    "USER": unquote(_place.username or ""),
    "PASSWORD": unquote(_place.password or ""),
    "HOST": _place.hostname or "",
    "PORT": _place.port or "",
}
DATABASES: dict[str, Any] = {
    "default": {"ENGINE": f"django.db.backends.{_engine}"}
    # In a file, because a worker has connections of its own.
    | ({"NAME": _file} if _engine == "sqlite3" else _server)
    | {"TEST": {"NAME": f"{_file}_for_tests", "MIGRATE": "DJANGO_TEST_UNMIGRATED" not in os.environ}},
    "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("DJANGO_TEST_OTHER", ":memory:")},
}
HOLDFAST: dict[str, Any] = json.loads(os.environ.get("DJANGO_TEST_HOLDFAST", "{}"))
if "DJANGO_KEEPS_CONNECTIONS" in os.environ:
    DATABASES["default"] |= {"CONN_MAX_AGE": None, "OPTIONS": {"application_name": "django_shop"}}

SECRET_KEY = "for tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["holdfast.django", "tests.django.shop"]
