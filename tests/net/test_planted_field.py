"""A remark on a node that people can edit takes three places: its field, its column, its migration.
Planted in a copy of the tree, every door has it; with one of the places left out a check fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORD, TABLE = "cod/model/machines.py", "cod/store/tables/nodes.py"
ABOUT = 'About("Remark", about="what administrators note", none="none", set_by=Right.ADMIN'
MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "{head}"


def upgrade() -> None:
    op.add_column(
        "nodes", sa.Column("remark", sa.String(200), server_default="", nullable=False)
    )
"""


def _field(tree: Path) -> None:
    _add(
        tree / RECORD,
        '    wipe: Undescribed[str] = ""\n',
        f"""\
    remark: Annotated[str, {ABOUT}, longest=200)] = ""
""",
    )


def _field_without_description(tree: Path) -> None:
    _add(tree / RECORD, '    wipe: Undescribed[str] = ""\n', '    remark: str = ""\n')


def _column(tree: Path) -> None:
    _add(
        tree / TABLE,
        '    Column("waits_since", Time, comment="null: it does not"),\n',
        '    defaulted("remark", String(200), ""),\n',
    )


def _migration(tree: Path) -> None:
    folder = tree / "schema/migrations"
    head = max(each.name for each in folder.glob("[0-9]*.py"))[:4]
    (folder / "9999_remark.py").write_text(MIGRATION.format(head=head))


def _add(path: Path, after: str, text: str) -> None:
    source = path.read_text()
    assert source.count(after) == 1, f"{path} has changed: plant the remark elsewhere"
    path.write_text(source.replace(after, after + text))


def _planted(folder: Path, *places: Callable[[Path], None]) -> Path:
    tree = folder / "tree"
    for name in ("cod", "schema", "web"):
        shutil.copytree(ROOT / name, tree / name)  # with what is compiled already
    for name in ("tests", "images", "trampoline", "docs", "build", "pyproject.toml"):
        (tree / name).symlink_to(ROOT / name)
    for plant in places:
        plant(tree)
    return tree


def _run(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def _test(tree: Path, name: str) -> subprocess.CompletedProcess[str]:
    return _run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", name)


@pytest.mark.slow
def test_a_remark_takes_three_places(tmp_path: Path) -> None:
    tree = _planted(tmp_path, _field, _column, _migration)
    done = _test(tree, "tests/net/planted_remark.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.slow
def test_a_field_without_its_description_is_refused(tmp_path: Path) -> None:
    tree = _planted(tmp_path, _field_without_description, _column, _migration)
    done = _run(tree, "-c", "import cod.web.api.resources.nodes")
    assert "Node.remark: neither described nor Undescribed" in done.stderr


@pytest.mark.slow
def test_a_field_without_its_column_is_refused(tmp_path: Path) -> None:
    done = _run(_planted(tmp_path, _field, _migration), "-c", "import cod.store.nodes.nodes")
    assert "Node.remark: there is no such column in nodes" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("places", "check"),
    [
        ((_column, _migration), "tests/unit/test_described.py::test_each_column_is_a_field"),
        (
            (_field, _column),
            "tests/store/test_schema.py::test_upgraded_schema_equals_fresh_schema[sqlite]",
        ),
    ],
    ids=["no field", "no migration"],
)
def test_a_column_without_its_field_or_migration_fails_a_test(
    tmp_path: Path, places: tuple[Callable[[Path], None], ...], check: str
) -> None:
    done = _test(_planted(tmp_path, *places), check)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "remark" in done.stdout
    assert "1 failed" in done.stdout


@pytest.mark.slow
def test_a_field_that_a_test_leaves_out_is_refused(tmp_path: Path) -> None:
    """`make check` reads the calls in tests too: here a record, and a test that makes it by hand.
    Nothing that they import is followed: that is dear."""
    record = "cod/web/api/context.py"
    for name in (record, "cod/web/http/port.py", "tests/attack/test_bodies.py", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    for name in ("trampoline", "schema", "images"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "empty.py").touch()
    check = ("-m", "mypy", "--follow-imports", "skip")
    assert "[call-arg]" not in _run(tmp_path, *check).stdout
    _add(tmp_path / record, "    simulator: Simulator\n", "    remark: str\n")
    assert 'Missing named argument "remark" for "Context"' in _run(tmp_path, *check).stdout
