"""The figures in a Markdown page: written between two markers, so that none is typed by hand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from holdfast.bench import report
from holdfast.bench.measure import Result
from holdfast.bench.study import Finding
from holdfast.errors import ConfigError


def refresh(page: Path, part: str, text: str) -> None:
    """Replace what stands between `<!-- PART:begin -->` and `<!-- PART:end -->`."""
    begin, end = f"<!-- {part}:begin -->", f"<!-- {part}:end -->"
    old = page.read_text()
    if old.count(begin) != 1 or old.count(end) != 1:
        raise ConfigError("page", f"must hold {begin} and {end} once each", str(page))
    between = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    page.write_text(between.sub(lambda _: f"{begin}\n{text.rstrip()}\n{end}", old))


def of_results(results: Sequence[Result], told: Sequence[str], plot: str) -> str:
    """Write the results as a table, after the plot and what is known of the machine."""
    rows = [line for group in report.lines(results) for line in group]
    return "\n\n".join(
        [
            "\n".join(f"- {one}" for one in told),
            f"![The drains side by side]({plot})",
            _table(report.columns(results), rows),
        ]
    )


def of_finding(finding: Finding, told: Sequence[str]) -> str:
    lines = [[report.cell(value) for value in line] for line in finding.lines]
    return "\n\n".join([finding.summary + ".", _table(finding.columns, lines), _list(told)])


def _list(told: Sequence[str]) -> str:
    return "\n".join(f"- {one}" for one in told)


def _table(columns: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    numbers = ["---" if name in report.WORDS else "--:" for name in columns]
    return "\n".join("| " + " | ".join(line) + " |" for line in (columns, numbers, *lines))
