"""The search: what a qualifier means, how words are quoted, and what cannot be read."""

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.dashboard.search import QUALIFIERS, said, wanted_of
from holdfast.errors import ConfigError
from holdfast.life.listing import Wanted

ID = "01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f"


@pytest.mark.parametrize(
    "search, wanted",
    [
        ("", Wanted()),
        ("queue:mail", Wanted(queue="mail")),
        ("QUEUE:mail kind:send", Wanted(queue="mail", kind="send")),
        ("state:dead,leased state:done", Wanted(states=("dead", "leased", "done"))),
        ('error:"timed out" key:order:9182', Wanted(error="timed out", key="order:9182")),
        (r'error:"a \"quoted\" word"', Wanted(error='a "quoted" word')),
        (ID, Wanted(ids=(ID,))),
        ("send_receipt", Wanted(kind="send_receipt")),
        ("group:3f worker:web1-1-a event:order.created", Wanted(group="3f", worker="web1-1-a", event="order.created")),
    ],
)
def test_a_search_means_what_it_says(search: str, wanted: Wanted) -> None:
    assert wanted_of(search) == wanted


@pytest.mark.parametrize(
    "search, told",
    [
        ("queue: mail", "needs what queue: asks for, without a space: queue:mail"),
        ("queue:mail since:", "needs what since: asks for"),
        # They name nothing, and would have meant everything.
        ("queue:mail state:,", "needs what state: asks for"),
        ("queue:mail id:,", "needs what id: asks for"),
        ('queue:mail error:"timed', 'cannot be read from error:"timed on'),
        ('queue:mail state:dead "', 'cannot be read from " on'),
        ('error:"timed out"since:2h', "cannot be read from since:2h on"),
        ("http: x", "has no qualifier http:"),
    ],
)
def test_what_says_less_than_it_seems_to_is_refused(search: str, told: str) -> None:
    """Actions go by what a search finds: one that was half understood would find more."""
    with pytest.raises(ConfigError, match=re.escape(told)):
        wanted_of(search)


@given(st.dictionaries(st.sampled_from(["queue", "kind", "key", "error", "worker"]), st.text(min_size=1, max_size=40)))
def test_what_is_written_is_read_again(parts: dict[str, str]) -> None:
    parts = {name: value for name, value in parts.items() if value.strip() == value and value.isprintable()}
    assert wanted_of(said(**parts)) == Wanted(**parts)  # type: ignore[arg-type]


@given(st.text(max_size=200))
def test_whatever_is_typed_is_read_or_told(search: str) -> None:
    with suppress(ConfigError):
        assert isinstance(wanted_of(search), Wanted)


def test_every_example_can_be_read() -> None:
    for example in QUALIFIERS.values():
        assert wanted_of(example) != Wanted()
