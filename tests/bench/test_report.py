"""The table, the plot and the page."""

import io
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from holdfast import __version__
from holdfast.bench import page, plot, report
from holdfast.bench.measure import Figure, Result
from holdfast.bench.study import Finding
from holdfast.errors import ConfigError

COSTS = {"worker_us": 20.4, "server_us": 30.0, "commits": 0.004, "log_bytes": 900.0, "dead_rows": 2.0}
DRAIN = Result(
    "PostgreSQL",
    "drain, async def, kept",
    "jobs/s",
    {
        "holdfast": Figure.of([30_000, 40_000, 50_000], [COSTS]),
        "raw": Figure.of([79_000, 80_000, 90_000], [{"worker_us": 12.0}]),
    },
)
LATENCY = Result("PostgreSQL", "idle latency p50", "ms", {"holdfast": Figure(2.5, 2.0, 3.0)}, {"peer": "it broke"})


def test_every_side_has_its_line() -> None:
    assert list(report.lines([DRAIN, LATENCY])) == [
        [
            ["PostgreSQL", DRAIN.name, "holdfast", "40,000", "30.0–50.0k", "0.50", "50", "0.004", "900", "2"],
            # What only one of the two is known of is no sum.
            ["", "", "raw", "80,000", "79.0–90.0k", "", "", "", "", ""],
        ],
        [
            ["", "idle latency p50, ms", "holdfast", "2.50", "2.00–3.00", "", "", "", "", ""],
            ["", "", "peer", "not measured", "", "", "", "", "", ""],
        ],
    ]


@pytest.mark.parametrize("width, left_out", [(80, ["CPU µs", "commits", "log bytes", "dead rows"]), (170, [])])
def test_a_narrow_terminal_gets_fewer_columns_and_whole_figures(width: int, left_out: list[str]) -> None:
    table, drawn = report.table([DRAIN, LATENCY]), io.StringIO()
    console = Console(file=drawn, width=width)
    assert report.fit(table, console)[-len(left_out) :] == left_out
    console.print(table)
    assert "…" not in drawn.getvalue()
    assert "40,000" in drawn.getvalue()


def test_a_row_may_have_another_reference() -> None:
    figures = {"holdfast": Figure.of([600.0]), "one queue": Figure.of([1_000.0])}
    queues = Result("SQLite", "drain, many queues", "jobs/s", figures, reference="one queue")

    [[ours, one]] = report.lines([queues])

    assert (ours[5], one[5]) == ("0.60 of one queue", "")
    assert report.rows_json([queues])[0]["ratio"] == pytest.approx(0.6)


def test_the_report_says_which_holdfast_it_was() -> None:
    assert report.machine()["packages"]["holdfast"] == __version__


def test_bars_are_as_long_as_their_medians() -> None:
    drawn = ElementTree.fromstring(plot.svg([DRAIN, LATENCY]))  # noqa: S314 (our own text)

    widths = [float(bar.attrib["width"]) for bar in drawn.iter("{http://www.w3.org/2000/svg}rect")]
    assert widths[0] == pytest.approx(2 * widths[1])
    words = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert words == ["PostgreSQL: drain, async def, kept, jobs/s", "raw", "80,000", "holdfast", "40,000"]


def test_a_page_keeps_what_stands_around_its_markers(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("before\n<!-- bench:begin -->\nformer figures\n<!-- bench:end -->\nafter\n")

    page.refresh(file, "bench", page.of_results([DRAIN], ["2 CPUs"], "page.svg"))
    page.refresh(file, "bench", page.of_results([LATENCY], ["2 CPUs"], "page.svg"))

    text = file.read_text()
    assert text.startswith("before\n<!-- bench:begin -->\n- 2 CPUs\n\n![The drains side by side](page.svg)\n")
    assert text.endswith("\n<!-- bench:end -->\nafter\n")
    assert "| PostgreSQL | idle latency p50, ms | holdfast | 2.50 |" in text
    assert "former" not in text
    assert DRAIN.name not in text


def test_a_study_is_written_with_its_summary() -> None:
    text = page.of_finding(
        Finding("big", ("tables", "jobs/s"), [("empty", 1000.0), ("full", None)], "0.97"), ["2 CPUs"]
    )

    assert text == "0.97.\n\n| tables | jobs/s |\n| --- | --: |\n| empty | 1,000 |\n| full |  |\n\n- 2 CPUs"


def test_a_page_without_markers_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("nothing to see")

    with pytest.raises(ConfigError, match="bench:begin"):
        page.refresh(file, "bench", "text")
