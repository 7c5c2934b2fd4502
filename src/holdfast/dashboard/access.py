"""Who may come in, and what they may do: the answer of an `access=` callable, and two that come with the dashboard."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Literal, get_args

from holdfast.dashboard.http import Request
from holdfast.errors import ConfigError

# retry: run a job that waits as soon as possible. cancel: end jobs and runs. change: priority, time, queue of jobs
# that wait. replay, discard: dead letters and cancelled jobs. pause: queues, kinds and routes, and let them go on.
# limits: of queues. lines: stop and start them. schedules: pause, resume, trigger. drain: workers. resume: dead runs.
# signal: runs.
Action = Literal[
    "retry",
    "cancel",
    "change",
    "replay",
    "discard",
    "pause",
    "limits",
    "lines",
    "schedules",
    "drain",
    "resume",
    "signal",
]
ACTIONS: frozenset[str] = frozenset(get_args(Action))


@dataclass(frozen=True)
class Access:
    """What somebody who is let in may do. actor: their name, for the audit. actions: none means to look only."""

    actor: str | None = None
    actions: Collection[Action] = ()

    def __post_init__(self) -> None:
        strange = (
            [self.actions] if isinstance(self.actions, str) else [one for one in self.actions if one not in ACTIONS]
        )
        if strange:
            raise ConfigError("actions", f"must be a collection of: {', '.join(sorted(ACTIONS))}", strange)
        if self.actions and not self.actor:
            raise ConfigError(
                "actor", "must name who acts, for the audit; leave out actions= for somebody to read", None
            )

    def may(self, action: str) -> bool:
        return action in self.actions


# Asked for each request, also for files and actions; None: not let in.
AccessRule = Callable[[Request], Access | Awaitable[Access | None] | None]
Actions = Collection[Action]


@dataclass(frozen=True)
class Login:
    """An access rule that also says how a browser may ask for a password."""

    check: Callable[[Request], Access | None]
    challenge: str

    def __call__(self, request: Request) -> Access | None:
        return self.check(request)


def by_password(user: str, password: str, *, actions: Actions = ()) -> Login:
    """Let in who gives this name and password (HTTP Basic): over TLS, or on this machine.

    The audit names the user.
    """
    _strong(password, "password")
    expected = f"{user}:{password}".encode()
    granted = Access(user, tuple(actions))

    def check(request: Request) -> Access | None:
        kind, _, sent = request.headers.get("authorization", "").partition(" ")
        try:
            given = base64.b64decode(sent.strip(), validate=True) if kind.lower() == "basic" else b""
        except (binascii.Error, ValueError):
            return None
        return granted if hmac.compare_digest(given, expected) else None

    return Login(check, 'Basic realm="Holdfast", charset="UTF-8"')


def by_token(token: str, *, actor: str = "token", actions: Actions = ()) -> Login:
    """Let in who sends `Authorization: Bearer TOKEN`, or the token as the password of any user (for browsers)."""
    _strong(token, "token")
    expected = token.encode()
    granted = Access(actor, tuple(actions))

    def check(request: Request) -> Access | None:
        kind, _, sent = request.headers.get("authorization", "").partition(" ")
        given = sent.strip().encode()
        if kind.lower() == "basic":
            try:
                given = base64.b64decode(sent.strip(), validate=True).partition(b":")[2]
            except (binascii.Error, ValueError):
                return None
        elif kind.lower() != "bearer":
            return None
        return granted if hmac.compare_digest(given, expected) else None

    return Login(check, 'Basic realm="Holdfast", charset="UTF-8"')


def _strong(secret: str, name: str) -> None:
    if len(secret) < 8:
        raise ConfigError(name, "must have at least 8 characters", "***")
