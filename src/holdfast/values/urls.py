"""Database URLs: how one is read, and how it may be shown.

A URL is read by one strict grammar, before any driver sees it. A driver that reads a password with an unescaped `@`,
`/` or `?` takes a part of it for a host or a database, and says so in its errors; here such a URL is refused, and
nothing of it is shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode

MASK = "***"

_SCHEME = r"(?:postgres(?:ql)?|mysql|mariadb|sqlite)(?:\+[a-z0-9_]{1,20})?"
_HOST = r"(?:\[[\w.:%]*\]|[\w.%~-]*)(?::[0-9]{1,5})?"
_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<name>[^:]*))(?::(?P<port>[0-9]*))?")
_URL = re.compile(
    rf"(?P<scheme>{_SCHEME})://"
    r"(?:(?P<user>[^:@/?#\s]*)(?::(?P<password>[^@/?#\s]*))?@)?"
    rf"(?P<hosts>{_HOST}(?:,{_HOST})*)"
    r"(?:/(?P<database>[^:@/?#\s]*))?"
    r"(?:\?(?P<query>[^@#\s]*))?",
    re.IGNORECASE,
)
# A broken escape, and what no part of an address has: libpq and Python stop at it, each in its own way.
_UNREADABLE = re.compile(r"%(?![0-9a-fA-F]{2})|[\x00-\x1f\x7f\ud800-\udfff]")
_WRONG_PORT = re.compile(r"[a-z0-9+_]+://[^@/?#\s]*@[^@/?#\s]*:[^@/?#\s]*(?:[/?][^@#\s]*)?", re.IGNORECASE)

# In any text, also in lines of logs of any length: no pattern may read a long word again from each of its letters.
_WORD = r"(?:password|passwd|pwd)"
_SETTING = (
    r"(?:host|hostaddr|port|user|dbname|database|options|service|passfile|charset|unix_socket|client_encoding|"
    r"connect_timeout|application_name|target_session_attrs|krbsrvname|gssencmode|channel_binding|ssl\w*)"
)
_ENDED = rf"(?=[\s&]+{_SETTING}\s*=|\s*$)"
_ASSIGNED = re.compile(rf"({_WORD})(\s*=\s*)(?:'(?:[^'\\]|\\.)*'{_ENDED}|.*?{_ENDED})", re.IGNORECASE | re.DOTALL)
_LOGIN = re.compile(r"(?<!sqlite)://(?P<user>[^:]*):.*@", re.DOTALL)
_NO_HOST = re.compile(r"((?<!sqlite)://[^:/?#\s@]*:)(?![0-9]{1,5}(?:[/?,'\"\s]|$)).*", re.DOTALL)
_NO_SLASHES = re.compile(
    r"\b((?:postgres(?:ql)?|mysql|mariadb)(?:\+\w+)?[:/])(?!//|\s).*[:@].*", re.IGNORECASE | re.DOTALL
)
_NO_SCHEME = re.compile(r"(?<![\w/])([\w.%+-]{1,200}+):\S*@")


@dataclass(frozen=True, slots=True)
class Url:
    """A URL taken apart; user, password and database are without their escapes, hosts as they were written."""

    scheme: str
    user: str | None
    password: str | None
    hosts: str
    database: str
    query: dict[str, str]

    @property
    def addresses(self) -> list[tuple[str, str]] | None:
        """Each host with its port, either of which may be empty; None where the ports do not fit the hosts.

        Read as libpq does: `host` and `port` of the settings count before what stands in the URL's own place for them.
        """
        found = [_ADDRESS.fullmatch(one) for one in self.hosts.split(",")]
        hosts = [unquote(one["v6"] or one["name"] or "") if one else "" for one in found]
        ports = [(one["port"] or "") if one else "" for one in found]
        if self.query.get("host"):
            hosts = self.query["host"].split(",")
        if self.query.get("port"):
            ports = self.query["port"].split(",")
        if len(ports) == 1:
            ports *= len(hosts)
        return list(zip(hosts, ports, strict=True)) if len(hosts) == len(ports) else None

    def secrets(self) -> list[str]:
        """List the passwords among the settings."""
        return [value for name, value in self.query.items() if secret(name)]

    def written(self, scheme: str) -> str:
        """Write it with every escape that there can be: a driver's own parser may stumble over other letters."""
        user = "" if self.user is None else quote(self.user, safe="")
        login = f"{user}:{quote(self.password, safe='')}" if self.password is not None else user
        settings = urlencode(self.query, quote_via=quote)
        at = f"{login}@" if login else ""
        database = f"/{quote(self.database, safe='')}" if self.database else ""
        return f"{scheme}://{at}{self.hosts}{database}{'?' if settings else ''}{settings}"


def read(url: str) -> Url | str:
    """Take a URL apart; what comes back as a text is the rule that it breaks."""
    found = _URL.fullmatch(url)
    if found is None or _UNREADABLE.search(url) or _ports_above(found["hosts"]):
        if "@" in url and _WRONG_PORT.fullmatch(url):
            return "the port must be a number from 0 to 65535"
        return (
            "cannot be read; in a user, a password or the name of a database, @ must be written %40, / %2F, : %3A, "
            "# %23, ? %3F, % %25 and a space %20"
        )
    user, password = ((unquote(part) if part is not None else None) for part in (found["user"], found["password"]))
    query = dict(parse_qsl(found["query"] or "", keep_blank_values=True))
    database = unquote(found["database"] or "")
    return Url(found["scheme"].lower(), user, password, found["hosts"], database, query)


def _ports_above(hosts: str) -> bool:
    return any(int(port) > 65_535 for port in re.findall(r":([0-9]+)(?:,|$)", hosts))


def secret(name: str) -> bool:
    """Tell whether a setting of this name is a password."""
    return re.fullmatch(rf"\w*{_WORD}", name, re.IGNORECASE) is not None


def shown(url: str) -> str:
    """Show a URL without its password; of one that cannot be read nobody can tell where the password ends."""
    if url.startswith("sqlite:///"):
        return redact(url)
    found = _URL.fullmatch(url)
    if found is None or _UNREADABLE.search(url):
        # Of a scheme that nobody knows, too, where it can be nothing else.
        scheme = re.match(rf"{_SCHEME}:/*|[a-z][a-z0-9+.-]{{0,30}}://", url, re.IGNORECASE)
        return f"{scheme[0] if scheme else ''}{MASK}"
    return _assigned(url if found["password"] is None else _masked(url, found))


def _masked(url: str, found: re.Match[str]) -> str:
    start, end = found.span("password")
    return f"{url[:start]}{MASK}{url[end:]}"


def redact(text: str) -> str:
    """Mask the passwords of URLs and connection strings in any text.

    Reads greedily: a password may hold an unescaped ``@`` or ``/``, and masking too much beats showing a part of it.
    """
    # First, because a password in the settings may hold an @ too.
    text = _NO_SLASHES.sub(rf"\1{MASK}", _assigned(text))
    if "://" not in text:
        return _NO_SCHEME.sub(rf"\1:{MASK}@", text) if "@" in text else text
    return _LOGIN.sub(_login, text, count=1) if "@" in text else _NO_HOST.sub(rf"\1{MASK}", text, count=1)


def _login(found: re.Match[str]) -> str:
    user = found["user"]
    return f"://{MASK}@" if re.search(r"[/?#\s]", user) else f"://{user}:{MASK}@"


def _assigned(text: str) -> str:
    return _ASSIGNED.sub(rf"\1\2{MASK}", text)
