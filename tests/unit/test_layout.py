"""Lines of code end at column 100, those that cannot be broken, such as samples, being few; what
several test modules share is in modules without tests; and the places of changes exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.manual import page

ROOT = Path(__file__).resolve().parents[2]
KINDS = (".py", ".html", ".css", ".js", ".sh", ".xml", ".toml", ".conf", ".j2")
MOST, COLUMNS = 200, 100


def test_few_lines_of_code_are_longer_than_100_columns() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    long = [
        f"{name}:{number}"
        for name in listed
        if name.endswith(KINDS) and (ROOT / name).exists()
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)
        if len(re.sub(r"  # (noqa|type:).*", "", line)) > COLUMNS
    ]
    assert len(long) < MOST, long


def test_what_tests_share_is_in_modules_without_tests() -> None:
    taken = [
        f"{file.relative_to(ROOT)}: {line}"
        for file in (ROOT / "tests").rglob("*.py")
        if not file.name.startswith("test_")
        for line in file.read_text().splitlines()
        if re.match(r"\s*(from tests\S*\.test_\w+ import |from tests\S* import .*\btest_)", line)
    ]
    assert not taken, taken


def test_the_places_of_changes_exist() -> None:
    """In the page for contributors; `name` stands for the name of a driver."""
    named = re.findall(r"`([\w./-]+/[\w./-]*)`", page("what-a-change-takes").read_text())
    assert [each for each in named if not (ROOT / each).exists()] == ["cod/power/name.py"]
