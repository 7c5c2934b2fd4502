"""The study of what Citus's forms cost: the earlier forms can still be made of the statements of now."""

from holdfast.store.catalogue import own_queries
from tests.bench.forms import EARLIER, Spent, earlier, row_of, told


def test_the_earlier_forms_can_be_made() -> None:
    now = own_queries("postgres")
    before = earlier(now)
    assert {name for name in now if before[name] != now[name]} == set(EARLIER)


def test_what_a_form_costs_is_told_as_the_rate_that_is_left() -> None:
    row = row_of("claim", [(Spent(98_000, 400_000), Spent(100_000, 400_000))] * 3)
    assert (row["cpu_ratio"], row["wall_ratio"]) == (0.98, 1.0)
    assert told(row).startswith("claim: 0.980 of the rate by the server's CPU (98.0 µs before, 100.0 now)")
