"""`tickets` picks due jobs as `claim` does. They are two queries, and what they share must stay the same text."""

import re
from collections.abc import Callable

import pytest

from holdfast.store.catalogue import Written, written_in


def statements(query: Written) -> list[str]:
    return [" ".join(each.split()) for each in query.statements]


def postgres(query: Written) -> list[str]:
    [found] = re.findall(
        r"from \( -- when queues: .* for update skip locked\) due limit \(select :limit::bigint\)", statements(query)[0]
    )
    return [re.sub(r"(lateral \( select id), [a-z_, ]+? (from)", r"\1 \2", found)]


def mysql(query: Written) -> list[str]:
    # What is behind the hops reads the picked rows, and leases them.
    return statements(query)[:4]


def sqlite(query: Written) -> list[str]:
    return re.findall(r"^with recursive .* is not null\) (?=select d)|from level join .*", statements(query)[0])


@pytest.mark.parametrize("pick, parts", [(postgres, 1), (mysql, 4), (sqlite, 2)], ids=["postgres", "mysql", "sqlite"])
def test_tickets_are_picked_as_jobs_are_claimed(pick: Callable[[Written], list[str]], parts: int) -> None:
    claim = pick(written_in("jobs", pick.__name__)["claim"])
    assert len(claim) == parts
    assert pick(written_in("lines", pick.__name__)["tickets"]) == claim
