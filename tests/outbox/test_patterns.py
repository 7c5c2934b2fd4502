"""Patterns over types, as AMQP topics have them."""

import pytest

from holdfast import ConfigError
from holdfast.outbox import Pattern, event_type

MATCHES = [
    ("order.created", "order.created", True),
    ("order.created", "order.paid", False),
    ("order.created", "order", False),
    ("order.*", "order.created", True),
    ("order.*", "order", False),
    ("order.*", "order.item.added", False),
    ("*.created", "order.created", True),
    ("*", "order", True),
    ("*", "order.created", False),
    ("*.*", "order.created", True),
    ("order.#", "order", True),
    ("order.#", "order.created", True),
    ("order.#", "order.item.added", True),
    ("order.#", "orders.created", False),
    ("#", "order", True),
    ("#", "a.b.c.d", True),
    ("#.created", "created", True),
    ("#.created", "order.item.created", True),
    ("#.created", "order.created.twice", False),
    ("order.#.added", "order.added", True),
    ("order.#.added", "order.item.line.added", True),
    ("order.#.added", "order.item.removed", False),
    ("#.item.#", "item", True),
    ("#.item.#", "order.item.added", True),
    ("#.item.#", "order.items.added", False),
    ("#.#", "a", True),
    ("*.#", "a", True),
    ("*.#.*", "a", False),
    ("*.#.*", "a.b", True),
    ("Order.*", "order.created", False),
    ("order-v2.*", "order-v2.created", True),
]


@pytest.mark.parametrize("pattern, type, matches", MATCHES)
def test_a_pattern_matches(pattern: str, type: str, matches: bool) -> None:
    assert Pattern(pattern).matches(type) is matches


@pytest.mark.parametrize("pattern", ["", ".", "order.", ".order", "order..paid", "order.c*", "or#der", "a b", None, 3])
def test_anything_but_a_pattern_is_refused(pattern: object) -> None:
    with pytest.raises(ConfigError, match="pattern"):
        Pattern(pattern)


@pytest.mark.parametrize("type", ["", "order.", "order.*", "#", "order created", "a\n", None, "x" * 201])
def test_anything_but_a_type_is_refused(type: object) -> None:
    with pytest.raises(ConfigError, match="type"):
        event_type(type)


@pytest.mark.parametrize("pattern, name", [("order.*", "order.any"), ("#", "all"), ("a.#.b", "a.all.b")])
def test_a_pattern_has_a_name_that_a_shell_leaves_alone(pattern: str, name: str) -> None:
    assert Pattern(pattern).name == name
