"""Applications with and without wake-ups on PostgreSQL: an enqueue has a form of its own in each."""

from typing import Any

import psycopg
import pytest

from holdfast import Holdfast


@pytest.mark.parametrize("said", [None, True, False])
@pytest.mark.parametrize("notify", [True, False])
@pytest.mark.parametrize("options", [{}, {"unique": "once"}], ids=["plain", "unique"])
def test_wake_ups_are_as_the_application_or_the_call_says(
    pg_url: str, notify: bool, said: bool | None, options: dict[str, Any]
) -> None:
    with Holdfast(pg_url, notify=notify) as hf, psycopg.connect(pg_url, autocommit=True) as ear:
        hf.migrate()
        channel = hf.store.dialect.channel  # type: ignore[attr-defined]
        ear.execute(f"listen {channel}")
        first = hf.enqueue("send", check=False, notify=said, **options)
        again = hf.enqueue("send", check=False, notify=said, **options)
        assert (again.id == first.id, again.created) == (bool(options), not options)
        hf.enqueue("send", check=False, notify=said, run_after=60)
        ear.execute("select pg_notify(%s, 'the end')", (channel,))
        heard = [one.payload for one in ear.notifies(timeout=20, stop_after=1)]
        while heard[-1] != "the end":
            heard += [one.payload for one in ear.notifies(timeout=20, stop_after=1)]
    wanted = notify if said is None else said
    assert heard == ["default"] * (0 if not wanted else 1 if options else 2) + ["the end"]
