"""The program of a later release, as far as its schema goes: today's, with one migration more."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cod import data
from cod.store import schema

EXPANDS = 'op.add_column("nodes", sa.Column("shade", sa.String(8), nullable=True))'
CONTRACTS = 'op.drop_table("held_files")'
FAILS = 'raise RuntimeError("no room")'


@contextmanager
def later(folder: Path, does: str, unused_since: str = "") -> Iterator[None]:
    """Let this process be of the release after the next one: the next one, 0.2, has today's schema,
    and what the later one's migration drops is `unused_since` one of them."""
    real, today = data.path, schema.head()
    shutil.copytree(real("schema"), folder, dirs_exist_ok=True)
    with (folder / "releases.toml").open("a") as releases:
        releases.write(f'\n["0.2"]\ncommit = "{"0" * 40}"\nschema = "{today}"\n')
    (folder / "migrations/9998_later.py").write_text(
        f'"""A later one.\n\nIts reasons."""\n\nimport sqlalchemy as sa\nfrom alembic import op\n\n'
        f'revision = "9998"\ndown_revision = "{today}"\n'
        + (f'unused_since = "{unused_since}"\n' if unused_since else "")
        + f"\n\ndef upgrade() -> None:\n    {does}\n"
    )

    def path(name: str) -> Path:
        return Path(folder, *Path(name).parts[1:]) if name.startswith("schema") else real(name)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(data, "path", path)
        yield
