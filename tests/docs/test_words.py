"""Words that strangers stumble over stay out: code, SQL, tests and pages are read by people who know none of it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What not to say, and what to say instead.
INSTEAD = {
    r"\bso[ -]many\b": "that many, this many, or the number's name",
    r"\bunless told\b": "by default",
    r"\bbut for (?!no longer)": "except",
    r"\bdear(?:er|est)?\b": "expensive",
    r"\bwhoever\b": "anyone who, the caller, the holder",
    r"\b(?:that|what) is none\b": "is not one",
    r"\bwhat is no (?!longer|more)": "what is not a",
}
FILES = [
    *(file for part in ("src", "tests") for kind in ("*.py", "*.sql") for file in (ROOT / part).rglob(kind)),
    *(ROOT / "docs").rglob("*.md"),
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
]


@pytest.mark.parametrize("word", INSTEAD)
def test_nobody_stumbles_over(word: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in FILES
        if file != Path(__file__)
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if re.search(word, line.replace("_", " "), re.IGNORECASE) and not line.lstrip(" #").startswith("So many that")
    ]
    assert found == [], f"say instead: {INSTEAD[word]}"


def test_the_glossary_is_in_order() -> None:
    words = re.findall(r"^\| \*\*(.+?)\*\* \|", (ROOT / "docs" / "glossary.md").read_text("utf-8"), re.MULTILINE)
    assert len(words) > 50
    assert words == sorted(set(words))
