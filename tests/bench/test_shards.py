"""The study of shards tells what the figures are made of."""

import json

import pytest

from tests.bench.shards import PROCESSES, Measured, main, row_of, told


def test_the_study_measures_four_files_beside_one(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--on", "sqlite", "--jobs", "40", "--rounds", "1", "--json"])
    enqueue, drain = map(json.loads, capsys.readouterr().out.splitlines())
    assert (enqueue["what"], drain["what"]) == ("enqueue", "drain")
    for row in (enqueue, drain):
        assert (row["database"], row["shards"]) == ("sqlite", 4)
        assert row["jobs_a_second_1"] > 0
        assert row["jobs_a_second"] > 0
        assert row["saturated"] in ("all cores", "the process", "the processes", "waits for locks and commits")
    assert (enqueue["target"], drain["target"]) == (2.0, None)


@pytest.mark.parametrize(
    "busy, own, processes, saturated",
    [
        (0.97, 1.1, PROCESSES, "all cores"),
        (0.6, 0.98, 1, "the process"),
        (0.5, 3.8, PROCESSES, "the processes"),
        (0.5, 0.9, PROCESSES, "waits for locks and commits"),
    ],
)
def test_what_was_used_up_first_is_told(busy: float, own: float, processes: int, saturated: str) -> None:
    one, more = Measured(1000, 0.5, 0.5, processes), Measured(2500, busy, own, processes)
    row = row_of("sqlite", "enqueue", 4, [one], [more])
    assert (row["ratio"], row["saturated"]) == (2.5, saturated)
    words = told(row)
    assert words.startswith("sqlite enqueue: ratio 2.5 (should be 2); 1 shard 1,000/s (cores busy 50%, 0.5 of ")
    assert f"4 shards 2,500/s (cores busy {busy:.0%}" in words
    assert words.endswith(f"used up: {saturated})")
