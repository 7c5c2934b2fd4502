"""The databases: which dialect serves a URL, and a folder for each with what only it knows.

Binding, error codes, how connections open, what wakes a worker and what is true of it (`base.py` lists that) belong
here. SQL does not: it stands beside the flows that ask for it. Nor do callers' connections (`store/callers.py`).
"""

from __future__ import annotations

from holdfast.errors import ConfigError
from holdfast.store.dialects.base import SCHEMA_VERSION, SCHEMES, Dialect
from holdfast.values.options import StoreOptions

__all__ = ["DIALECTS", "SCHEMA_VERSION", "Dialect", "dialect_for", "dialect_named"]

# A URL of each dialect, for those who want its SQL and no connection.
_ANY = {"postgres": "postgresql://localhost/any", "mysql": "mysql://localhost/any", "sqlite": "sqlite:///:memory:"}
DIALECTS = tuple(_ANY)


def dialect_named(name: str, options: StoreOptions) -> Dialect:
    """Make a dialect by its own name; it connects to nothing."""
    return dialect_for(_ANY[name], options)


def dialect_for(url: str, options: StoreOptions) -> Dialect:
    """Choose the dialect by the URL's scheme; a SQLAlchemy driver suffix is allowed and ignored."""
    scheme = url.partition("://")[0].partition("+")[0] if "://" in url else ""
    if scheme in SCHEMES["sqlite"]:
        from holdfast.store.dialects.sqlite import Sqlite

        if options.schema:
            raise ConfigError("schema", "SQLite has no schemas; use prefix", options.schema)
        return Sqlite(options)
    if scheme in SCHEMES["postgres"]:
        from holdfast.store.dialects.postgres import Postgres
        from holdfast.store.dialects.postgres.hosts import split_url

        split_url(url)
        if options.listen_url is not None:
            split_url(options.listen_url, "listen_url")
        return Postgres(options)
    if scheme in SCHEMES["mysql"]:
        from holdfast.store.dialects.mysql import Mysql, checked

        checked(url)
        if options.schema:
            raise ConfigError(
                "schema", "a schema is a database in MySQL: name it in the URL, or use prefix", options.schema
            )
        return Mysql(options)
    allowed = "must start with sqlite:///, postgresql://, mysql:// or mariadb://; for a file: sqlite:///shop.db"
    raise ConfigError("url", allowed, url)
