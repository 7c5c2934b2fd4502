"""The short form of killing relays, and proof that its account would notice a broken promise."""

from dataclasses import replace

import pytest

from tests.faults.relay_kill import Account, kill
from tests.faults.relay_places import PLACES, Arrival

SECONDS = 4


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite_url", "pg_url"])
def test_killing_relays_loses_no_event_and_keeps_every_key_in_order(
    database: str, request: pytest.FixtureRequest
) -> None:
    judge(kill(request.getfixturevalue(database), SECONDS))


# Kafka and RabbitMQ take long to come back: `make kill` has them killed, too.
@pytest.mark.slow
@pytest.mark.parametrize("database, broker", [("pg_url", "kafka"), ("sqlite_url", "rabbitmq")])
def test_a_consumer_gets_every_event_in_order_though_relays_are_killed(
    database: str, broker: str, request: pytest.FixtureRequest
) -> None:
    place = PLACES[broker](request.getfixturevalue(broker))
    judge(kill(request.getfixturevalue(database), SECONDS, place))


@pytest.mark.slow
@pytest.mark.parametrize("database, broker", [("pg_url", "nats"), ("mariadb_url", "nats"), ("mysql_url", "redis")])
def test_a_consumer_gets_every_event_in_order_though_relays_and_the_broker_are_killed(
    database: str, broker: str, request: pytest.FixtureRequest
) -> None:
    place = PLACES[broker]()
    try:
        account = kill(request.getfixturevalue(database), SECONDS, place, restart=True)
    finally:
        place.discard()
    judge(account)
    assert account.away


def judge(account: Account) -> None:
    assert account.broken() == []
    assert account.published
    assert account.killed


# Would it notice?

DEAD, ALIVE = 7, 8
FIRST, AGAIN, SECOND = Arrival("a", "k", 1, DEAD), Arrival("a", "k", 1, ALIVE), Arrival("b", "k", 2, ALIVE)
FINE = Account({"a": ("k", 1), "b": ("k", 2)}, {"c"}, [FIRST, AGAIN, SECOND], {DEAD})


def test_a_repeat_of_a_killed_relay_is_explained() -> None:
    assert FINE.broken() == []
    assert FINE.repeats == 1


@pytest.mark.parametrize(
    "arrived, word",
    [
        ([AGAIN], "lost: b"),
        ([*FINE.arrived, Arrival("c", "k", 3, ALIVE)], "rolled back: c"),
        ([SECOND, AGAIN], "out of order"),
        ([*FINE.arrived, SECOND], "no relay died with it: b"),
    ],
)
def test_what_is_wrong_is_noticed(arrived: list[Arrival], word: str) -> None:
    [flaw] = replace(FINE, arrived=arrived).broken()
    assert word in flaw


@pytest.mark.parametrize("sent, explained", [(100.0, True), (200.0, False)])
def test_a_repeat_is_explained_by_a_broker_that_was_away_only_while_it_was(sent: float, explained: bool) -> None:
    copies = [Arrival("b", "k", 2, ALIVE, sent), Arrival("b", "k", 2, ALIVE, 201.0)]
    account = replace(FINE, arrived=[FIRST, AGAIN, *copies], away=(101.0, 110.0))
    assert (account.broken() == []) is explained
