"""Receiving: messages of other systems become jobs of ours, each once."""

from __future__ import annotations

from typing import Any

from holdfast.app.controlling import Controls
from holdfast.bound import Bound, plain_bound
from holdfast.values.once import INBOX_WINDOW, message_key, message_scope
from holdfast.values.retry import Duration, seconds


class Receives(Controls):
    """The face by which an application takes messages in."""

    def receive_one(
        self,
        source: str,
        message_id: str,
        job: Bound,
        *,
        window: Duration = INBOX_WINDOW,
        tx: Any = None,
        notify: bool | None = None,
    ) -> bool:
        """Add the job of a message once: `hf.receive_one("stripe", event["id"], paid.bind(…), tx=session)`.

        source, message_id: what names the message; a repeat adds nothing, whatever its job is, for as long as `window`
        (a week by default). tx, notify: as in `Handler.using`. Answer the sender once this is committed: a message
        that it sends again, because it did not hear of that, is then known.
        Returns whether the message is new. Two calls at the same moment: the second waits until the first one's
        transaction ends. Nothing that a repeat does makes your transaction fail.
        """
        return self._run(self._adding_one(_named(job, source, message_id, window), notify), tx).created

    async def areceive_one(
        self,
        source: str,
        message_id: str,
        job: Bound,
        *,
        window: Duration = INBOX_WINDOW,
        tx: Any = None,
        notify: bool | None = None,
    ) -> bool:
        """The async twin of `receive_one`."""
        return (await self._arun(self._adding_one(_named(job, source, message_id, window), notify), tx)).created


def _named(job: Bound, source: str, message_id: str, window: Duration) -> Bound:
    """Return a job that is added for a message, if that is new."""
    bound = plain_bound(job, "hf.receive_one")
    like = bound.like._replace(
        scope=message_scope(source),
        idempotency_key=message_key(message_id),
        window_ms=round(seconds(window, "window", at_least=0.001) * 1000),
    )
    return Bound(bound.payload, like)
