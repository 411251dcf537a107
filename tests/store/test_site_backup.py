"""A whole site backed up, destroyed and restored: people, nodes, keys, certificates and images are
as they were."""

from __future__ import annotations

import json
import shutil
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import Engine, select

from cod import backup as site_backup
from cod import init
from cod.cli.root import cod
from cod.flows.boot import script as boot_flow
from cod.flows.images import images as image_flows
from cod.flows.people import people
from cod.images import store as image_store
from cod.images.ingest import ingest
from cod.policy.hardware import wiping
from cod.policy.nodes import lifecycle
from cod.security import secretfile
from cod.security.ca import Ca
from cod.site import load
from cod.site.load import Settings
from cod.states import Disk, NodeState
from cod.store import tables as t
from cod.store.database import connect
from cod.store.images import images
from cod.store.nodes import nodes
from tests.mariadb import MariaDB
from tests.store.test_dhcp_flow import dora, held_node

pytestmark = [pytest.mark.slow, pytest.mark.mariadb_always]  # each test founds a site

NOW = 1_770_000_000.0


class Founded:
    """A site in `folder`, with a user, an active node, keys, certificates, and an image."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder, self.file = folder, folder / "site.toml"
        self.password = folder.parent / "rack1.password"
        self.password.write_text("secret\n")
        self.password.chmod(0o600)
        init.write_site_file(self.file, folder, {})
        account = (
            f'\n[[account]]\nname = "rack1"\nuser = "cod"\npassword_file = "{self.password}"\n'
        )
        text = self.file.read_text().replace('# database = ""', f'database = "{database}"')
        self.file.write_text(text + account)
        init.found(folder, self.file, {}, NOW)
        self.settings: Settings = load.load(self.file)[1]
        Ca(self.settings.authority, "site")
        self.settings.consoles.mkdir(exist_ok=True)
        (self.settings.consoles / "log").write_text("not kept")
        self.engine: Engine = connect(self.settings.database)
        with self.engine.begin() as tx:
            people.create(tx, "ann", now=NOW)
            nodes.add(
                tx,
                name="n1",
                boot_mac="52:54:00:00:00:01",
                now=NOW,
                cause="test",
                actor="test",
                state=NodeState.ACTIVE,
            )
        self.digest = self.add("red", b"red" * 100_000)

    def add(self, name: str, content: bytes) -> str:
        source = self.folder.parent / f"{name}.img"
        source.write_bytes(content)
        done = ingest(source, self.settings.images, raw=True)
        with self.engine.begin() as tx:
            image = image_flows.add(tx, name=name, source=str(source), now=NOW).value
            image_flows.finish(tx, image_id=image.id, ingested=done)
        return done.digest

    def empty(self) -> None:
        """Leave users and groups alone."""
        with self.engine.begin() as tx:
            for table in reversed(t.metadata.sorted_tables):
                if table not in (t.users, t.groups):
                    tx.execute(table.delete())

    def facts(self) -> dict[str, Any]:
        """Whatever has to be as it was after a restore."""
        engine = connect(self.settings.database)
        with engine.connect() as tx:
            kept = {
                "nodes": [(node.name, node.boot_mac, node.state) for node in nodes.every(tx)],
                "people": tx.scalars(select(t.users.c.name)).all(),
                "images": [(image.name, image.digest) for image in images.every(tx)],
            }
        engine.dispose()
        data = self.settings.data
        held = {
            str(path.relative_to(data)): path.read_bytes()
            for folder in ("boot", "ca", "web", "images")
            for path in sorted((data / folder).rglob("*"))
            if path.is_file()
        }
        return (
            kept
            | held
            | {
                "key": secretfile.key(self.settings.webhook_key),
                "password": self.password.read_text(),
                "site": self.file.read_text(),
            }
        )

    def destroy(self) -> None:
        """Leave what a new server has: no data folder, no site file, an empty database."""
        self.engine.dispose()
        shutil.rmtree(self.folder)
        self.password.unlink()
        if not self.settings.database.startswith("sqlite"):
            engine = connect(self.settings.database)
            with engine.begin() as tx:
                tx.exec_driver_sql("SET FOREIGN_KEY_CHECKS = 0")
                for name in (*t.metadata.tables, "alembic_version"):
                    tx.exec_driver_sql(f"DROP TABLE `{name}`")
            engine.dispose()


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    database = ""
    if request.param == "mariadb":
        server: MariaDB = request.getfixturevalue("mariadb")
        database = server.url("whole_site")
    found = Founded(tmp_path / "site", database)
    yield found
    found.engine.dispose()


@pytest.fixture
def small(tmp_path: Path) -> Any:
    found = Founded(tmp_path / "site", "")
    yield found
    found.engine.dispose()


def run(there: Founded, *words: str) -> Result:
    return CliRunner().invoke(cod, ["--site", str(there.file), *words])


def test_a_destroyed_site_is_restored_as_it_was(there: Founded, tmp_path: Path) -> None:
    before, backups = there.facts(), tmp_path / "backups"
    made = run(there, "backup", str(backups))
    assert made.exit_code == 0, made.output
    assert "1 images copied" in made.output
    assert {path.stat().st_mode & 0o077 for path in backups.rglob("*") if path.is_file()} == {0}
    assert backups.stat().st_mode & 0o077 == 0
    there.destroy()
    restored = run(there, "restore", str(backups))
    assert restored.exit_code == 0, restored.output
    assert there.facts() == before
    modes = {
        path: path.stat().st_mode & 0o077
        for path in (there.file, there.password, *there.settings.data.rglob("*"))
        if path.is_file()
    }
    assert set(modes.values()) == {0}
    assert not there.settings.consoles.exists()
    # it signs again
    Ca(there.settings.authority, "site").vcm("web", datetime.now(UTC))


def test_a_restored_site_boots_its_nodes(small: Founded, tmp_path: Path) -> None:
    """A node in use boots from its disk; a free one loads the trampoline, where it reports and is
    wiped."""
    small.empty()
    site = load.load(small.file)[0]
    with small.engine.begin() as tx:
        held_node(tx, site, state="active")
        nodes.add(
            tx,
            name="n2",
            boot_mac="52:54:00:00:00:02",
            now=NOW,
            cause="test",
            actor="test",
            state=NodeState.INACTIVE,
        )
    assert run(small, "backup", str(tmp_path / "backups")).exit_code == 0
    small.destroy()
    assert run(small, "restore", str(tmp_path / "backups")).exit_code == 0
    engine = connect(small.settings.database)
    with engine.begin() as tx:
        for mac, action in (("52:54:00:00:00:01", "local"), ("52:54:00:00:00:02", "trampoline")):
            address = dora(tx, site, mac, now=NOW + 60)
            plan = boot_flow.script(tx, mac, address, site, NOW + 61)
            assert plan.action == action, plan.why
        # what runs may have been installed since the backup, for another group
        running, free = (nodes.by_mac(tx, f"52:54:00:00:00:0{n}") for n in (1, 2))
        assert running is not None
        assert free is not None
        assert (running.disk, free.disk) == (Disk.FOREIGN, Disk.DIRTY)
        assert not wiping.is_its_holders(running)
        assert not lifecycle.may_keep_disk(running, '<template cache="yes"/>')
    engine.dispose()


def test_the_next_backup_copies_what_is_new_and_old_sets_go(small: Founded, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    first = site_backup.backup(small.file, backups, NOW)
    assert first.images == 1
    second = site_backup.backup(small.file, backups, NOW + 1)
    assert (second.images, second.bytes) == (0, 0)
    blue = small.add("blue", b"blue" * 100_000)
    with small.engine.begin() as tx:
        images.remove(tx, images.named(tx, ["red"])["red"].id)
    told: list[tuple[str, int, int]] = []
    third = site_backup.backup(
        small.file, backups, NOW + 2, keep=1, progress=lambda *one: told.append(one)
    )
    assert told == [("copying images", each, third.bytes) for each in (0, third.bytes)]
    assert third.set.images == (blue,)
    assert [each.name for each in site_backup.sets(backups)] == [third.set.name]
    assert image_store.digests(backups / "images") == {blue}
    assert {path.name for path in (backups / "files").iterdir()} == {
        each.sha256 for each in third.set.files
    }
    assert site_backup.check(backups, third.set) == []
    good = run(small, "restore", str(backups), "--check", "-o", "json")
    assert json.loads(good.stdout) == site_backup.described(third.set)
    both = run(small, "restore", str(backups), "--check", "--list")
    assert (both.exit_code, both.stdout) == (2, "")


def test_nothing_is_overwritten_without_a_word(small: Founded, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    assert run(small, "backup", str(backups)).exit_code == 0
    with small.engine.begin() as tx:
        people.create(tx, "bob", now=NOW)
    refused = run(small, "restore", str(backups))
    assert refused.exit_code == 1
    assert "the database holds nodes already" in refused.stderr
    (small.settings.authority / "ca.key").write_text("another key")
    refused = run(small, "restore", str(backups))
    assert "ca/ca.key would be overwritten" in refused.stderr
    with small.engine.connect() as tx:
        assert sorted(tx.scalars(select(t.users.c.name))) == ["ann", "bob"]
    assert (small.settings.authority / "ca.key").read_text() == "another key"
    done = run(small, "restore", str(backups), "--replace")
    assert done.exit_code == 0, done.output
    assert f"kept {small.file}" in done.stderr
    with small.engine.connect() as tx:
        assert list(tx.scalars(select(t.users.c.name))) == ["ann"]
    assert Ca(small.settings.authority, "site").ends_at > NOW


def test_people_alone_are_a_reason_not_to_overwrite(small: Founded, tmp_path: Path) -> None:
    """A site that has no machine yet is still somebody's work."""
    small.empty()
    assert run(small, "backup", str(tmp_path / "backups")).exit_code == 0
    refused = run(small, "restore", str(tmp_path / "backups"))
    assert refused.exit_code == 1
    assert "the database holds users already" in refused.stderr


@pytest.mark.parametrize("part", ["database", "file", "image", "lost image"])
def test_a_damaged_backup_restores_nothing(small: Founded, tmp_path: Path, part: str) -> None:
    backups = tmp_path / "backups"
    made = site_backup.backup(small.file, backups, NOW).set
    image = backups / "images" / small.digest
    path = {
        "database": backups / "sets" / made.name / "database.gz",
        "file": backups / "files" / made.files[0].sha256,
        "image": image / "data.zst",
        "lost image": image,
    }[part]
    if path.is_dir():
        shutil.rmtree(path)
    else:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    small.destroy()
    for words in (["restore", str(backups)], ["restore", str(backups), "--check"]):
        refused = run(small, *words)
        assert refused.exit_code == 1
        assert f"the backup {made.name} is damaged" in refused.stderr
    assert not small.folder.exists()


def test_a_site_that_runs_is_not_restored_over(small: Founded, tmp_path: Path) -> None:
    assert run(small, "backup", str(tmp_path / "backups")).exit_code == 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as edge:
        edge.bind(str(small.settings.run / "edge.wake"))
        refused = run(small, "restore", str(tmp_path / "backups"), "--replace")
        assert refused.exit_code == 1
        assert "the server runs" in refused.stderr
    assert run(small, "restore", str(tmp_path / "backups"), "--replace").exit_code == 0


def test_an_image_that_is_deleted_meanwhile_is_in_no_set(
    small: Founded,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rows of a set name no image that the set does not hold."""
    plain, calls = site_backup._copied, []

    def meanwhile(digests: list[str], source: Path, target: Path, *more: Any) -> Any:
        if not calls:
            with small.engine.begin() as tx:
                images.remove(tx, images.named(tx, ["red"])["red"].id)
            image_store.remove(source, small.digest)
        calls.append(digests)
        return plain(digests, source, target, *more)

    monkeypatch.setattr(site_backup, "_copied", meanwhile)
    done = site_backup.backup(small.file, tmp_path / "backups", NOW)
    assert calls == [[small.digest], []]
    assert (done.set.images, done.set.missing, done.notes) == ((), (), [])


def test_an_image_that_is_deleted_while_it_is_measured_ends_no_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "red").mkdir()
    (tmp_path / "red/data.zst").write_bytes(b"red")
    listed = Path.glob

    def meanwhile(folder: Path, pattern: str) -> list[Path]:
        found = list(listed(folder, pattern))
        shutil.rmtree(folder)
        return found

    monkeypatch.setattr(Path, "glob", meanwhile)
    told: list[tuple[str, int, int]] = []
    walk = site_backup._with_progress(
        ["red"], tmp_path, "copying images", lambda *one: told.append(one)
    )
    assert list(walk) == ["red"]
    assert told[-1] == ("copying images", 0, 0)


def test_what_the_site_has_lost_is_said_and_the_rest_is_saved(
    small: Founded, tmp_path: Path
) -> None:
    data = small.settings.images / small.digest / "data.zst"
    content = bytearray(data.read_bytes())
    content[10] ^= 1
    data.write_bytes(content)
    made = run(small, "backup", str(tmp_path / "backups"))
    assert made.exit_code == 1
    assert f"image {small.digest[:12]}: the chunk at 0" in made.stderr
    small.destroy()
    restored = run(small, "restore", str(tmp_path / "backups"))
    assert restored.exit_code == 0
    assert "is not in the backup: the site had lost it" in restored.stderr


def test_only_an_empty_folder_or_the_sites_own_backups_are_written_to(
    small: Founded, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/letter").write_text("mine")
    assert (
        "is not empty and holds no backups" in run(small, "backup", str(tmp_path / "home")).stderr
    )
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["letter"]
    assert "holds no complete backup" in run(small, "restore", str(tmp_path / "home")).stderr
    assert run(small, "backup", str(tmp_path / "backups")).exit_code == 0
    small.file.write_text(small.file.read_text().replace('# name = "site"', 'name = "other"'))
    assert (
        "holds backups of the site 'site', not of 'other'"
        in run(small, "backup", str(tmp_path / "backups")).stderr
    )
    assert (
        "has no set '1999'; it has 20"
        in run(small, "restore", str(tmp_path / "backups"), "--set", "1999").stderr
    )


def test_a_folder_in_the_data_folder_would_be_backed_up_itself(
    small: Founded, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(small.settings.data)
    for folder in (
        small.settings.data / "backups",
        small.settings.data / "cache/backups",
        tmp_path / "link/backups",
    ):
        done = run(small, "backup", str(folder))
        assert done.exit_code == 1
        assert f"{folder} is in the data folder" in done.stderr
        assert not folder.exists()


def test_a_set_that_is_half_removed_is_no_set(
    small: Founded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backups = tmp_path / "backups"
    site_backup.backup(small.file, backups, NOW)
    real = shutil.rmtree

    def dies(path: Path, **more: Any) -> None:
        for database in path.rglob("database.gz"):
            database.unlink()
            raise SystemExit
        real(path, **more)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", dies)
        with pytest.raises(SystemExit):
            site_backup.backup(small.file, backups, NOW + 1, keep=1)
    [left] = site_backup.sets(backups)
    assert site_backup.check(backups, left) == []


def test_a_backup_that_is_killed_is_no_set_and_the_next_one_goes_on(
    small: Founded, tmp_path: Path
) -> None:
    backups = tmp_path / "backups"
    first = site_backup.backup(small.file, backups, NOW).set
    (backups / "sets/.new-dead").mkdir()
    (backups / "sets/.new-dead/database.gz").write_bytes(b"half")
    assert [each.name for each in site_backup.sets(backups)] == [first.name]
    site_backup.backup(small.file, backups, NOW + 1)
    assert not (backups / "sets/.new-dead").exists()
