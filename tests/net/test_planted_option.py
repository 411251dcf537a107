"""An option that people choose when they ask for a vcluster or for nodes takes four places: its
column, its migration, the thing's field, and the field of what is asked for. Planted in a copy of
the tree, every door has it; with one of the places left out a check fails. `test_planted_field`
leaves out a migration."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.net.test_planted_field import ROOT, _add, _planted, _run, _test

VCLUSTERS, REQUESTS = "cod/model/sharing/vclusters.py", "cod/model/sharing/requests.py"
TABLES = "cod/store/tables/scheduler.py"
MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "{head}"


def upgrade() -> None:
    op.add_column(
        "vclusters", sa.Column("quiet", sa.Boolean, server_default=sa.false(), nullable=False)
    )
    op.add_column("node_requests", sa.Column("over_by", sa.Double))
"""
pytestmark = pytest.mark.slow


def _columns(tree: Path) -> None:
    _add(
        tree / TABLES,
        '    Column("user_id", Id, comment="who created it; null: not known"),\n',
        '    defaulted("quiet", Boolean, False),\n',
    )
    _add(
        tree / TABLES,
        '    Column("duration", Time, comment="seconds for which it is"),\n',
        '    Column("over_by", Time),\n',
    )


def _migration(tree: Path) -> None:
    folder = tree / "schema/migrations"
    head = max(each.name for each in folder.glob("[0-9]*.py"))[:4]
    (folder / "9999_options.py").write_text(MIGRATION.format(head=head))


def _fields(tree: Path) -> None:
    _add(
        tree / VCLUSTERS,
        "    network_prefix: Undescribed[int | None] = None\n",
        """\
    quiet: Annotated[
        bool,
        About(
            "Quiet", FieldKind.FLAG, "fans turn slowly", set_by=Right.USE, level=FieldLevel.WIDE
        ),
    ] = False
""",
    )
    _add(
        tree / REQUESTS,
        "from cod.model.records import record\n",
        "from cod.model.rights import Right\n",
    )
    _add(
        tree / REQUESTS,
        "    granted: Undescribed[int] = 0\n",
        """\
    over_by: Annotated[
        float | None,
        About("Over by", FieldKind.MOMENT, "when", none="whenever", set_by=Right.USE),
    ] = None
""",
    )


def _asked_vcluster(tree: Path) -> None:
    _add(
        tree / VCLUSTERS,
        "    mounts: Undescribed[Sequence[AskedVolume]] = ()\n",
        "    quiet: bool = False\n",
    )


def _asked_nodes(tree: Path) -> None:
    _add(
        tree / REQUESTS,
        "    before: Undescribed[float | None] = None\n",
        "    over_by: float | None = None\n",
    )


ALL = (_columns, _migration, _fields, _asked_vcluster, _asked_nodes)


def test_an_option_takes_four_places(tmp_path: Path) -> None:
    done = _test(_planted(tmp_path, *ALL), "tests/net/planted_option.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


ASKED = "from cod import model; model.described(model.{})"  # as importing the API does
LEFT_OUT = {
    _columns: (
        "import cod.store.scheduler.requests",
        "Request.over_by: there is no such column",
    ),
    _fields: (ASKED.format("AskedVcluster"), "neither described nor Undescribed"),
    _asked_vcluster: (
        ASKED.format("AskedVcluster"),
        "AskedVcluster.quiet: Vcluster has it to be set",
    ),
    _asked_nodes: (ASKED.format("AskedNodes"), "AskedNodes.over_by: Request has it to be set"),
}


def test_an_option_without_one_of_them_is_refused(tmp_path: Path) -> None:
    tree = _planted(tmp_path)
    for left_out, (program, said) in LEFT_OUT.items():
        for name in (VCLUSTERS, REQUESTS, TABLES):
            shutil.copy2(ROOT / name, tree / name)
        for plant in LEFT_OUT.keys() - {left_out}:
            plant(tree)
        assert said in _run(tree, "-c", program).stderr, left_out
