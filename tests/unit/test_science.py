"""`make science`: its parts in their smallest form, its intervals, and the table of systems."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import science, systems

SMALLEST = science.Effort(map, seeds=(1, 2), days=0.2)
ROWS = {"ways": len(science.WAYS), "gaps": 5, "sinp": 3, "pools": 3}


@pytest.mark.slow
@pytest.mark.parametrize("name", science.PARTS)
def test_a_part_makes_its_table_and_its_charts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "science.md"
    page.write_text(science.PAGE.read_text())
    monkeypatch.setattr(science, "PAGE", page)
    monkeypatch.setattr(science, "PLOTS", tmp_path)
    made = science.PARTS[name](SMALLEST)
    science.put(name, made, "Means of 2 seeds.")
    assert len(made.rows) == ROWS[name]
    assert {len(row) for row in made.rows} == {len(made.heads)}
    assert f"{science.markdown(made)}\n\nMeans of 2 seeds.\n" in page.read_text()
    for file, chart in made.charts.items():
        assert (tmp_path / file).read_text() == chart != ""
    systems.rows(page.read_text())  # finds its figures in what was made
    if name == "ways":  # idle groups change nothing
        figures = {row[0]: row[1:] for row in made.rows}
        assert figures["fair shares"] != figures["equal groups, no shares"]
        for idle in science.IDLE:
            assert figures[idle] == figures["fair shares"]


def test_the_interval_is_that_of_students_t() -> None:
    """Ten values with a mean of 5.5 and a standard deviation of 3.0277."""
    assert science.interval(range(1, 11)) == pytest.approx((5.5, 2.262 * 3.0277 / 10**0.5), 1e-4)
    assert science.interval([1.0, 3.0]) == pytest.approx((2.0, 12.706), 1e-4)
    assert science.shown([{"a": 0.25}, {"a": 0.25}], "a", ".1f", "%") == "25.0 ± 0.0%"


def test_the_table_of_systems_has_the_figures_that_the_page_has_elsewhere() -> None:
    page = science.PAGE.read_text()
    made = science.markdown(science.Part(systems.HEADS, systems.rows(page)))
    assert made in page, "run make science, or tests.bench.science with the part that changed"


def test_a_cell_is_found_by_section_row_and_column() -> None:
    page = "## A\n\n| x | y |\n|---|---|\n| 1 |  |\n\n## B\n\n| x | y |\n|---|---|\n| 1 | b |\n"
    assert systems.cell(page, "A", "1", "y") == ""
    assert systems.cell(page, "B", "1", "y") == "b"
    with pytest.raises(KeyError, match="A: 2: y"):
        systems.cell(page, "A", "2", "y")
