"""A whole run's few failures get a second run, and no other end of a run does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import again, ledger

Run = Callable[..., int]
STEADY = "def test_steady(): pass\n"
LEFT_OUT = "def test_left_out(): assert False\n"
BROKEN = "def test_broken(): assert False\n"
SKIPPED = "import pytest\ndef test_skipped(): pytest.skip('no root')\n"
SKIPPED_WHOLE = "import pytest\npytest.skip('no root', allow_module_level=True)\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Returns what ends a run with a status and failures of these files, as `make test` does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ledger, "LAST", tmp_path / "ledger.json")
    ledger.LAST.write_text("of all")
    last = tmp_path / "lastfailed"

    def ended(status: int, **files: str) -> int:
        for name, text in files.items():
            (tmp_path / f"test_{name}.py").write_text(text)
        last.write_text(json.dumps({f"test_{name}.py::test_{name}@stand": True for name in files}))
        return again.main(status, ["-k", "not left_out"], last)

    return ended


@pytest.mark.slow
def test_a_test_that_passes_alone_is_named(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(1, steady=STEADY + LEFT_OUT) == 0
    assert capfd.readouterr().out.endswith("mended:\n  test_steady.py::test_steady\n")
    assert ledger.LAST.read_text() == "of all"


@pytest.mark.slow
def test_a_test_that_fails_again_refuses_the_change(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(1, steady=STEADY, broken=BROKEN) == 1
    assert "UNSTEADY" not in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("text", [SKIPPED, SKIPPED_WHOLE], ids=["the test", "its file"])
def test_a_test_that_is_skipped_the_second_time_has_not_passed(
    run: Run, capfd: pytest.CaptureFixture[str], text: str
) -> None:
    assert run(1, skipped=text, steady=STEADY) == 1
    assert "skipped in its second run" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("status", "files"),
    [(1, {f"steady{n}": STEADY for n in range(again.FEW + 1)}), (2, {"steady": STEADY}), (1, {})],
    ids=["many failed", "interrupted", "none failed"],
)
def test_no_other_run_gets_a_second_chance(run: Run, status: int, files: dict[str, str]) -> None:
    assert run(status, **files) == status


def test_a_group_is_no_part_of_a_tests_name() -> None:
    assert again.without_group("t.py::test_a@portal") == "t.py::test_a"
    assert again.without_group("t.py::test_a[x@y]@portal") == "t.py::test_a[x@y]"
    assert again.without_group("t.py::test_a[x@y]") == "t.py::test_a[x@y]"
