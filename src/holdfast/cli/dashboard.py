"""`holdfast dashboard`: the pages in a browser, served from here."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from holdfast.cli.app_argument import AppArgument
from holdfast.cli.shared import (
    Exit,
    Failure,
    actor_name,
    actor_option,
    connection_options,
    current,
    load_app,
    require_tables,
)
from holdfast.cli.stores import plain_app

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.dashboard.access import AccessRule, Action
    from holdfast.dashboard.board import Dashboard
    from holdfast.dashboard.http import Request
    from holdfast.dashboard.serving import Server

PORT = 8321
PASSWORD, TOKEN = "HOLDFAST_DASHBOARD_PASSWORD", "HOLDFAST_DASHBOARD_TOKEN"


@click.command(short_help="Look at the work in a browser, and act on it.")
@click.argument("named", cls=AppArgument, metavar="[APP]", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 takes a free one.")
@click.option(
    "--allow-actions",
    "allowed",
    is_flag=False,
    flag_value="all",
    metavar="[ACTION,…]",
    help="Let people act, all or some of: retry, cancel, change, replay, discard, pause, limits, lines, …",
)
@click.option("--user", default="holdfast", show_default=True, help="The name that goes with the password.")
@click.option("--password-file", type=click.Path(exists=True, dir_okay=False), help=f"Or ${PASSWORD}.")
@click.option("--token-file", type=click.Path(exists=True, dir_okay=False), help=f"Or ${TOKEN}.")
@click.option("--trust-user-header", metavar="NAME", help="Take who asks from this header, which a proxy sets.")
@click.option("--allow-host", multiple=True, help="A further name that the dashboard is opened by; may be repeated.")
@click.option("--allow-origin", multiple=True, help="An origin that forms may come from, such as a proxy's.")
@click.option("--base-path", default="", help="The path below which a proxy has it, such as /holdfast.")
@click.option("--title", default="Holdfast", show_default=True, help="What the pages are called.")
@click.option("--insecure", is_flag=True, help="Listen on another address than this machine's without a password.")
@actor_option
@connection_options
def dashboard(
    named: str | None,
    host: str,
    port: int,
    allowed: str | None,
    user: str,
    password_file: str | None,
    token_file: str | None,
    trust_user_header: str | None,
    allow_host: tuple[str, ...],
    allow_origin: tuple[str, ...],
    base_path: str,
    title: str,
    insecure: bool,
    actor: str | None,
) -> None:
    """Serve the dashboard until Ctrl-C: by default to this machine alone, and to look only.

    APP gives it the routes, queues and foreign tables of the application; with --url it shows what the database holds.
    Actions need --allow-actions, and are audited in the name of who is logged in, else of --actor. Another address than
    this machine's needs a password or a token (or --insecure): put a proxy with TLS before it.

    \b
    Example:
      holdfast dashboard shop:hf --allow-actions
      HOLDFAST_DASHBOARD_PASSWORD=… holdfast dashboard --url postgresql://app@db/shop --host 0.0.0.0 --allow-host ops1
    """
    password, token = _secret(password_file, PASSWORD), _secret(token_file, TOKEN)
    if not _is_loopback(host) and not (password or token or insecure):
        hint = f"set {PASSWORD}, give --password-file or --token-file, or say --insecure"
        raise Failure(f"{host} can be reached by others, and nobody would be asked who they are", Exit.USAGE, hint)
    if base_path and not base_path.startswith("/"):
        raise Failure("--base-path begins with a slash, such as /holdfast", Exit.USAGE)
    granted = _actions(allowed)
    rule = _rule(user, password, token, trust_user_header, granted, actor_name(actor))
    hosts = None if insecure and not allow_host else _hosts(host, allow_host)
    with application_of(named) as holdfast:
        require_tables(holdfast.store)
        board = holdfast.dashboard(access=rule, hosts=hosts, origins=allow_origin, title=title)
        with _listening(board, host, port, base_path) as server, suppress(KeyboardInterrupt):
            doing = "people may act" if granted else "read only; --allow-actions lets people act"
            click.echo(f"Holdfast dashboard on {server.address} ({doing}). Ctrl-C ends it.")
            server.serve_forever(poll_interval=0.2)


def _listening(board: Dashboard, host: str, port: int, base_path: str) -> Server:
    from holdfast.dashboard.serving import Server

    try:
        return Server(board.wsgi, host, port, base_path)
    except OSError as error:
        raise Failure(f"cannot listen on {host}:{port}: {error.strerror}", Exit.USAGE, "give another --port") from error


def application_of(named: str | None) -> Holdfast:
    # Kept for what is told later: commands to type are written with it.
    name = current().app = named or current().app
    return load_app(name) if name else plain_app()


def _is_loopback(host: str) -> bool:
    from ipaddress import ip_address

    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _hosts(host: str, also: Collection[str]) -> set[str]:
    from holdfast.dashboard.guard import LOOPBACK

    mine = {*LOOPBACK} if _is_loopback(host) else {*LOOPBACK, host}
    return mine | {one.lower() for one in also}


def _secret(path: str | None, variable: str) -> str | None:
    if path is None:
        return os.environ.get(variable) or None
    text = Path(path).read_text().strip()
    if not text:
        raise Failure(f"{path} is empty", Exit.USAGE)
    return text


def _actions(said: str | None) -> tuple[Action, ...]:
    from holdfast.dashboard.access import Action

    known: tuple[Action, ...] = get_args(Action)
    if said is None:
        return ()
    if said == "all":
        return known
    named = [word.strip() for word in said.split(",") if word.strip()]
    if strange := [word for word in named if word not in known]:
        hint = f"there are {', '.join(known)}"
        if ":" in strange[0]:
            hint = f"write APP before it: holdfast dashboard {strange[0]} --allow-actions"
        raise Failure(f"there is no action {strange[0]!r}", Exit.USAGE, hint)
    return tuple(one for one in known if one in named)


def _rule(
    user: str, password: str | None, token: str | None, header: str | None, actions: tuple[Action, ...], actor: str
) -> AccessRule:
    """Say who comes in: those with the secret, those whom the proxy names, or all who reach this machine."""
    from holdfast.dashboard.access import Access, by_password, by_token

    if password and token:
        raise Failure("a password and a token are set", Exit.USAGE, "use one of the two")
    login = None
    if password:
        login = by_password(user, password, actions=actions)
    elif token:
        login = by_token(token, actions=actions)
    if header is None:
        return login or (lambda _request: Access(actor, actions))

    def named(request: Request) -> Access | None:
        who = request.headers.get(header.lower(), "").strip()
        if not who or (login is not None and login(request) is None):
            return None
        return Access(who[:200], actions)

    return named
