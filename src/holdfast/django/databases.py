"""An entry of `DATABASES` as a URL of ours: no project says twice where its database is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from holdfast.errors import ConfigError
from holdfast.values.urls import Url

MEMORY = "sqlite:///:memory:"
# What libpq reads; all else in OPTIONS is for Django or for its driver's own calls.
_LIBPQ = ("options", "passfile", "service", "target_session_attrs", "krbsrvname", "gssencmode", "channel_binding")
# mysqlclient's words for how a certificate is looked at, and ours.
_SSL_MODES = {"REQUIRED": "none", "VERIFY_CA": "ca", "VERIFY_IDENTITY": "full"}


def url_of(connection: Any) -> str:
    """Write where a connection of Django's goes, as the worker's own connections need it.

    Raises: ConfigError for databases that Holdfast does not serve, and settings that it cannot read.
    """
    made = _MAKERS.get(connection.vendor)
    if made is None:
        rule = f"must be PostgreSQL, MySQL, MariaDB or SQLite for Holdfast, and {connection.alias!r} is not"
        raise ConfigError(f'DATABASES["{connection.alias}"]["ENGINE"]', rule, connection.settings_dict["ENGINE"])
    return made(connection.alias, connection.settings_dict)


def options_of(connection: Any) -> dict[str, Any]:
    """Read from the entry what is an option of ours: how long to wait for the server, or for the lock of a file."""
    given, names = connection.settings_dict.get("OPTIONS") or {}, _TIMES.get(connection.vendor, {})
    return {ours: float(given[theirs]) for theirs, ours in names.items() if given.get(theirs) is not None}


def _sqlite(alias: str, settings: Mapping[str, Any]) -> str:
    name = str(settings["NAME"] or "")
    if name == ":memory:":
        return MEMORY
    if name.startswith("file:"):
        path, _, query = name.removeprefix("file:").partition("?")
        how = dict(parse_qsl(query))
        if path == ":memory:" or how.get("mode") == "memory":
            return MEMORY
        if how:
            raise ConfigError(f'DATABASES["{alias}"]["NAME"]', "must be a path: settings in a URI are not read", name)
        name = unquote(path)
    return f"sqlite:///{quote(name, safe='/')}"


def _postgres(alias: str, settings: Mapping[str, Any]) -> str:
    given: Mapping[str, Any] = settings.get("OPTIONS") or {}
    query = {name: str(value) for name, value in given.items() if name in _LIBPQ or name.startswith("ssl")}
    if role := given.get("assume_role"):
        query["options"] = f"{query.get('options', '')} -c role={role}".strip()
    return _server("postgresql", settings, query, socket="host")


def _mysql(alias: str, settings: Mapping[str, Any]) -> str:
    given: Mapping[str, Any] = settings.get("OPTIONS") or {}
    for name in ("read_default_file", "read_default_group"):
        if name in given:
            rule = "cannot be read by Holdfast's own driver: write host, user and password into DATABASES"
            raise ConfigError(f'DATABASES["{alias}"]["OPTIONS"]["{name}"]', rule, given[name])
    query = {"unix_socket": str(given["unix_socket"])} if given.get("unix_socket") else {}
    return _server("mysql", settings, query | _tls(given), socket="unix_socket")


def _tls(given: Mapping[str, Any]) -> dict[str, str]:
    """Read mysqlclient's settings of TLS: `ssl` with the paths of certificates, and `ssl_mode`."""
    mode, paths = str(given.get("ssl_mode") or "").upper(), given.get("ssl")
    if mode == "DISABLED" or not (paths or mode in _SSL_MODES):
        return {}
    files = dict(paths) if isinstance(paths, Mapping) else {}
    found = {f"ssl_{name}": str(files[name]) for name in ("ca", "cert", "key") if files.get(name)}
    return {"ssl": "true", **found, "ssl_verify": _SSL_MODES.get(mode, "ca" if "ca" in files else "none")}


def _server(scheme: str, settings: Mapping[str, Any], query: dict[str, str], *, socket: str) -> str:
    host, port = str(settings.get("HOST") or ""), str(settings.get("PORT") or "")
    if host.startswith("/"):
        query = {socket: host} | query
        # A socket of PostgreSQL has the port in its name.
        query |= {"port": port} if port and socket == "host" else {}
        host = port = ""
    hosts = host.split(",") if host else [""] * bool(port)
    ports = port.split(",") if "," in port else [port] * len(hosts)
    written = ",".join(f"{_bracketed(one)}{at and f':{at}'}" for one, at in zip(hosts, ports, strict=False))
    user, password = (settings.get(name) or None for name in ("USER", "PASSWORD"))
    return Url(scheme, _text(user), _text(password), written, str(settings["NAME"] or ""), query).written(scheme)


def _bracketed(host: str) -> str:
    return f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


_MAKERS = {"sqlite": _sqlite, "postgresql": _postgres, "mysql": _mysql}
_TIMES = {
    "sqlite": {"timeout": "busy_timeout"},
    "postgresql": {"connect_timeout": "connect_timeout"},
    "mysql": {"connect_timeout": "connect_timeout"},
}
