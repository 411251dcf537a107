"""Migrations only expand, or say since which release nothing uses what goes: docs/upgrading."""

from __future__ import annotations

import ast
import re

import pytest

from cod import data
from cod.store import schema

RELEASES = schema.releases()
FIRST = next(iter(RELEASES.values()))["schema"]  # the rule holds from the first release on
DROPS = {
    "drop_column",
    "drop_table",
    "rename_table",
    "create_unique_constraint",
    "create_check_constraint",
    "create_foreign_key",
}
NARROWS = {"new_column_name", "type_", "nullable"}  # of alter_column; nullable=True widens
SQL = re.compile(r"\b(DROP|RENAME|CHANGE|MODIFY)\b", re.IGNORECASE)


def contractions(source: str) -> list[str]:
    """Return what a migration does that a program of the release before could not work with."""
    found = []
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        done, options = call.func.attr, {each.arg: each.value for each in call.keywords}
        narrows = {
            name
            for name in NARROWS & options.keys()
            if not (name == "nullable" and ast.unparse(options[name]) == "True")
        }
        if done in DROPS or (done == "alter_column" and narrows):
            found.append(ast.unparse(call))
        elif done == "create_index" and "unique" in options:
            found += [ast.unparse(call)] if ast.unparse(options["unique"]) != "False" else []
        elif done == "add_column":
            found += [ast.unparse(each) for each in call.args if _needs_a_value(each)]
        elif done == "execute" and SQL.search(ast.unparse(call)):
            found.append(ast.unparse(call))
    return found


def _needs_a_value(column: ast.expr) -> bool:
    """Return whether a program that does not know the column cannot add a row."""
    if not isinstance(column, ast.Call):
        return False
    options = {each.arg: ast.unparse(each.value) for each in column.keywords}
    optional = options.get("nullable", "True") == "True" or "server_default" in options
    return not optional


def complaint(source: str) -> str:
    """Return what is wrong with a migration; '' where nothing is."""
    found = contractions(source)
    release = re.search(r'^unused_since = "(.*)"$', source, re.MULTILINE)
    if found and not release:
        return f"contracts, and names no release with `unused_since` (docs/upgrading): {found[0]}"
    if release and release[1] not in RELEASES:
        return f"names the release {release[1]}, which schema/releases.toml has not"
    if release and not found:
        return "names a release, and contracts nothing"
    return ""


def test_a_migration_expands_or_says_since_when_nothing_uses_what_goes() -> None:
    files = sorted((data.path("schema") / "migrations").glob("0*.py"))
    assert len(files) > int(FIRST)
    wrong = {path.name: complaint(path.read_text()) for path in files if path.name[:4] > FIRST}
    assert not any(wrong.values()), wrong


@pytest.mark.parametrize(
    "line",
    [
        'op.drop_column("nodes", "purge")',
        'op.drop_table("moves")',
        'op.rename_table("moves", "transfers")',
        'op.add_column("nodes", sa.Column("way", sa.String(8), nullable=False))',
        'batch_op.add_column(sa.Column("way", sa.String(8), nullable=False))',
        'op.alter_column("nodes", "way", new_column_name="path")',
        'batch_op.alter_column("way", existing_type=sa.String(8), nullable=False)',
        'op.create_index("ux", "nodes", ["way"], unique=True)',
        'op.execute("ALTER TABLE nodes DROP COLUMN way")',
    ],
)
def test_a_contraction_is_found_and_needs_its_release(line: str) -> None:
    assert "contracts" in complaint(line)
    assert complaint(f'unused_since = "0.1"\n{line}') == ""
    assert "0.0" in complaint(f'unused_since = "0.0"\n{line}')


@pytest.mark.parametrize(
    "line",
    [
        'op.add_column("nodes", sa.Column("way", sa.String(8)))',
        'op.add_column("nodes", sa.Column("way", sa.String(8), nullable=True))',
        'op.add_column("n", sa.Column("w", sa.Integer(), server_default="0", nullable=False))',
        'op.create_table("ways", sa.Column("id", ID, nullable=False))',
        'op.create_index("ix", "nodes", ["way"], unique=False)',
        'batch_op.alter_column("way", existing_type=sa.String(8), nullable=True)',
        'op.execute("UPDATE nodes SET way = 1")',
    ],
)
def test_an_expansion_needs_nothing(line: str) -> None:
    assert complaint(line) == ""
    assert "contracts nothing" in complaint(f'unused_since = "0.1"\n{line}')


def test_each_release_has_a_commit_and_a_schema_that_grows() -> None:
    schemas = [each["schema"] for each in RELEASES.values()]
    known = {path.name[:4] for path in (data.path("schema") / "migrations").glob("0*.py")}
    assert schemas == sorted(schemas)
    assert set(schemas) <= known
    assert all(re.fullmatch("[0-9a-f]{40}", each["commit"]) for each in RELEASES.values())
