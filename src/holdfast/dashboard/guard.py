"""What stands between the network and a page: Host, cross-site requests, and the headers of every answer."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from holdfast.dashboard.http import Request, Response

CSP = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
HEADERS = (
    ("content-security-policy", CSP),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)
NOT_KEPT = ("cache-control", "no-store")
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def name_of(host: str) -> str:
    """Return the name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].rstrip(".").lower()


def name_said(host: str) -> str:
    """Return the name that somebody means who allows a host, also one with a port or an address of IPv6."""
    return name_of(f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host)


def knows_host(request: Request, hosts: Collection[str] | None) -> bool:
    """Tell whether the request names a host that is ours: one that does not may come from a rebound name."""
    return hosts is None or name_of(request.host) in hosts


def is_same_origin(request: Request, origins: Collection[str] = ()) -> bool:
    """Tell whether a request that changes something comes from a page of ours.

    Browsers say so in Sec-Fetch-Site, where the address is trustworthy to them (TLS, or this machine); elsewhere in
    Origin. A request that says neither is refused: an old browser may be behind it, and programs have the API.
    """
    if (origin := request.headers.get("origin", "")) and origin.rstrip("/") in origins:
        return True
    if site := request.headers.get("sec-fetch-site"):
        return site in ("same-origin", "none")
    if not origin or origin == "null":
        return False
    try:
        said = urlsplit(origin)
    except ValueError:
        return False
    return bool(request.host) and said.netloc.lower() == request.host.lower() and said.scheme in ("http", "https")


def guarded(response: Response, *, kept: bool = False) -> Response:
    """Add the headers that every answer has."""
    have = {name for name, _ in response.headers}
    extra = [*HEADERS, *([] if kept or "cache-control" in have else [NOT_KEPT])]
    return Response(response.status, response.body, response.kind, (*response.headers, *extra))
