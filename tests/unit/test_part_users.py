"""The users of the server's parts: one table, which the package, the units and the files follow."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cod import init
from cod.cli.server import trampoline
from cod.doctor.checks import users
from cod.model import FileServer
from cod.model.keys import SiteTable
from cod.security import partusers, secretfile
from cod.security.partusers import GROUP, PEOPLE, POWER, USERS
from cod.service.parts import PARTS
from cod.site import load, ownership
from cod.site.file import SiteFile, keys
from cod.site.load import Settings
from cod.supervisor import Supervisor

UNITS = Path(__file__).parents[2] / "docs/systemd"
OTHER = 4242  # a user that owns nothing here


def test_every_part_has_a_user_of_its_own() -> None:
    assert set(USERS) == set(PARTS)
    assert len({user.name for user in USERS.values()}) == len(USERS)
    assert {partusers.group_of(("edge", "manager")), partusers.group_of(("manager", "web"))} == {
        POWER,
        PEOPLE,
    }
    assert partusers.group_of(("edge", "web")) == GROUP  # no smaller one has both


def test_the_package_makes_these_users() -> None:
    lines = [
        shlex.split(line)
        for line in (UNITS / "cod.sysusers.conf").read_text().splitlines()
        if line[:1] != "#"
    ]
    assert {name for kind, name, *_ in lines if kind == "g"} == {GROUP, POWER, PEOPLE}
    users = {name: ids for kind, name, ids, *_ in lines if kind == "u"}
    assert users == {user.name: f"-:{GROUP}" for user in USERS.values()}
    assert {(name, group) for kind, name, group, *_ in lines if kind == "m"} == {
        (user.name, group) for user in USERS.values() for group in user.groups
    }


def setting(unit: str, key: str) -> str:
    return " ".join(re.findall(rf"^{key}=(.*)$", (UNITS / f"{unit}.service").read_text(), re.M))


def capabilities(*parts: str) -> set[str]:
    """What units give: the interfaces of isolated vclusters are a site's choice."""
    return {f"CAP_{each.upper()}" for part in parts for each in USERS[part].capabilities} - {
        "CAP_NET_ADMIN"
    }


@pytest.mark.parametrize("part", USERS)
def test_a_parts_unit_has_its_user_and_its_capabilities(part: str) -> None:
    unit = f"cod-{part}"
    assert (setting(unit, "User"), setting(unit, "Group")) == (USERS[part].name, GROUP)
    for key in ("CapabilityBoundingSet", "AmbientCapabilities"):
        assert set(setting(unit, key).split()) == capabilities(part)


def test_the_unit_of_all_parts_changes_users() -> None:
    assert setting("cod", "ExecStart").endswith(" serve --users")
    assert set(setting("cod", "CapabilityBoundingSet").split()) == capabilities(*USERS) | {
        "CAP_SETUID",
        "CAP_SETGID",
        "CAP_KILL",
    }


def test_a_part_keeps_those_of_its_capabilities_that_its_supervisor_has() -> None:
    status = "Name:\tcod\nCapPrm:\t0000000000002420\nCapEff:\t0000000000000000\n"
    assert partusers.held(status) == {"net_bind_service", "net_raw"}
    assert partusers.command("edge", ["cod", "serve"], partusers.held(status)) == [
        "setpriv",
        "--reuid=cod-edge",
        "--regid=cod",
        "--init-groups",
        "--inh-caps=-all,+net_bind_service,+net_raw",
        "--ambient-caps=-all,+net_bind_service,+net_raw",
        "--no-new-privs",
        "--",
        "cod",
        "serve",
    ]
    assert "--ambient-caps=-all" in partusers.command("manager", [], partusers.held(status))


def test_the_supervisor_starts_parts_as_their_users(tmp_path: Path) -> None:
    supervisor = Supervisor(["web"], tmp_path / "site.toml", tmp_path)
    argv = supervisor._command("web")
    supervisor._parts[0].signs.close()
    assert argv[0] == "setpriv"
    assert "--reuid=cod-web" in argv
    assert argv[-3:] == ["serve", "--only", "web"]


# ---------------------------------------------------------------- files


def path_keys(table: type[SiteTable], name: str = "") -> Iterator[tuple[str, str]]:
    """Every key of the site file that names a file."""
    for key in keys(table):
        if key.table is not None:
            yield from path_keys(key.table, key.name)
        elif key.file:
            yield name, key.name


def test_the_table_of_readers_has_every_file_that_the_site_file_can_name() -> None:
    assert set(path_keys(SiteFile)) == {*ownership.SECRETS}


def test_web_reads_neither_the_authoritys_key_nor_the_passwords_of_bmcs(settings: Settings) -> None:
    assert "web" not in ownership.SECRETS["account", "password_file"]
    assert POWER not in partusers.groups_of("web")
    (key,) = (each for each in ownership.places(settings) if each.path.name == "ca.key")
    assert (key.owner, key.mode) == ("edge", 0o600)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A site's, where every part is this process's user, which need not be root."""
    monkeypatch.setattr(partusers, "uid", lambda owner: os.geteuid())
    monkeypatch.setattr(partusers, "gid", lambda group: os.getegid())
    init.write_site_file(tmp_path / "site.toml", tmp_path / "data", {})
    (tmp_path / "data" / "ca").mkdir(parents=True)
    return load.load(tmp_path / "site.toml")[1]


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def settled(settings: Settings, *, change: bool = True) -> list[str]:
    return list(ownership.settle(load.read(settings.path), settings, change=change))


def test_files_get_their_modes_once(settings: Settings) -> None:
    key = settings.authority / "ca.key"
    key.write_text("")
    key.chmod(0o644)
    settings.run.mkdir()
    lock = settings.lock("web")
    lock.write_text("")
    would = settled(settings, change=False)
    assert mode(key) == 0o644
    assert not settings.images.exists()
    done = settled(settings)
    assert len(done) > len(would) > 0
    assert any(line.startswith(f"{key}: ") for line in done)
    assert (mode(key), mode(settings.authority), mode(settings.images)) == (0o600, 0o750, 0o750)
    assert (mode(settings.run), mode(lock)) == (0o1770, 0o660)
    assert settled(settings) == settled(settings, change=False) == []


def test_links_and_files_of_several_names_are_left_alone(
    settings: Settings, tmp_path: Path
) -> None:
    """A part that writes below a folder shall not have others' files given to it."""
    victims = [tmp_path / name for name in ("linked", "named")]
    for victim in victims:
        victim.write_text("")
        victim.chmod(0o600)
    settings.images.mkdir()
    (settings.images / "link").symlink_to(victims[0])
    os.link(victims[1], settings.images / "name")
    (settings.images / "folder").symlink_to(tmp_path)
    (settings.images / "own").write_text("")
    settled(settings)
    assert [mode(victim) for victim in victims] == [0o600, 0o600]
    assert mode(settings.images / "own") == 0o640


def test_folders_in_folders_are_looked_into_so_far(settings: Settings) -> None:
    """A part could make more of them than Python can follow, and no later file got its owner."""
    folder = settings.incoming.joinpath(*"a" * (ownership.DEEPEST + 2))
    folder.mkdir(parents=True)
    deep, flat = folder / "file", settings.incoming / "file"
    for file in (deep, flat):
        file.write_text("")
        file.chmod(0o644)
    settled(settings)
    assert (mode(flat), mode(deep)) == (0o640, 0o644)


def test_a_file_behind_a_closed_folder_is_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partusers, "uid", lambda owner: OTHER)
    monkeypatch.setattr(partusers, "gid", lambda group: OTHER)
    with TemporaryDirectory() as open_folder:
        folder = Path(open_folder)
        folder.chmod(0o755)
        key, certificate = (folder / name for name in ("key", "certificate"))
        for each in (key, certificate):
            each.write_text("")
            each.chmod(0o644)
        more = f'[api]\nkey = "{key}"\ncertificate = "{certificate}"\n'
        file = load.parse(settings.path.read_text().replace("[api]\n", more), settings.path)

        def closed() -> set[tuple[str, Path]]:
            return {each for each in ownership.closed(file, settings) if each[1].parent == folder}

        assert closed() == set()
        folder.chmod(0o700)
        assert closed() == {("web", key), ("web", certificate)}


def test_a_database_in_another_folder_has_to_be_writable(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "other" / "cod.db"
    file.parent.mkdir()
    file.write_text("")
    elsewhere = replace(settings, server=replace(settings.server, database=f"sqlite:///{file}"))

    def closed() -> set[Path]:
        each = ownership.closed(load.read(settings.path), elsewhere)
        return {path for _, path in each} & {file, file.parent}

    assert closed() == set()  # this process's user's
    monkeypatch.setattr(partusers, "uid", lambda owner: OTHER)
    monkeypatch.setattr(partusers, "gid", lambda group: OTHER)
    assert closed() == {file, file.parent}
    for path in (file, file.parent):
        path.chmod(0o777)
    assert closed() == set()


def test_a_database_of_another_name_in_the_data_folder_is_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cod permissions` does not move it, and no part can write beside it."""
    file = settings.data / "other.db"
    file.write_text("")
    elsewhere = replace(settings, server=replace(settings.server, database=f"sqlite:///{file}"))
    monkeypatch.setattr(partusers, "uid", lambda owner: OTHER)
    monkeypatch.setattr(partusers, "gid", lambda group: OTHER)
    assert ("web", file) in set(ownership.closed(load.read(settings.path), elsewhere))


@pytest.mark.parametrize(
    ("words", "comm"), [(["--only", "web"], "python3"), ([], "cod-web")], ids=["program", "fork"]
)
def test_the_doctor_names_a_part_that_runs_as_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], comm: str
) -> None:
    (tmp_path / "7").mkdir()
    line = "\0".join(["python3", "/usr/bin/cod", "serve", *words, ""])
    for name, text in (("cmdline", line), ("comm", f"{comm}\n"), ("status", "Uid:\t0\t0\t0\t0\n")):
        (tmp_path / "7" / name).write_text(text)
    monkeypatch.setattr(partusers, "uid", {"web": 990}.get)
    [found] = users._processes(tmp_path)
    assert "the part web, process 7, runs as user 0, not as cod-web" in found.found


def test_the_doctor_names_a_file_server_that_only_root_can_change(settings: Settings) -> None:
    site = load.load(settings.path)[0]
    own, other = (
        FileServer(name=name, driver="knfsd", address="10.0.0.1", root="/srv", ssh=ssh)
        for name, ssh in (("own", ""), ("other", "root@store"))
    )
    (found,) = users._fileservers(replace(site, fileservers=(own, other)))
    assert "own has no ssh" in found.found


def test_a_secret_may_be_read_by_the_parts_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "password"
    path.write_text("s3cret\n")
    path.chmod(0o640)
    monkeypatch.setattr(partusers, "group_ids", lambda: {path.stat().st_gid})
    assert secretfile.first_line(path) == "s3cret"
    path.chmod(0o660)
    with pytest.raises(secretfile.Unreadable, match="mode 0660"):
        secretfile.first_line(path)
    path.chmod(0o644)
    with pytest.raises(secretfile.Unreadable, match="mode 0644"):
        secretfile.first_line(path)


def test_groups_are_not_asked_for_where_a_secret_is_its_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that is away would hold up each command for a BMC."""
    path = tmp_path / "password"
    path.write_text("s3cret\n")
    path.chmod(0o600)
    monkeypatch.setattr(partusers, "group_ids", lambda: pytest.fail("asked"))
    assert secretfile.first_line(path) == "s3cret"


def test_a_trampoline_that_root_builds_anew_is_every_parts_to_read(tmp_path: Path) -> None:
    built = tmp_path / "ramdisk"
    built.write_text("new")
    built.chmod(0o600)  # by a shell whose umask is 077
    trampoline.put(built, tmp_path / "boot" / "ramdisk")
    assert mode(tmp_path / "boot" / "ramdisk") == 0o644


@pytest.mark.slow
def test_a_site_that_is_founded_again_leaves_the_run_folder_to_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cod init` is run again after a missing package was installed."""
    folder, site_file = tmp_path / "data", tmp_path / "site.toml"
    init.found(folder, site_file, {}, 1000.0)
    run = folder / "run"
    assert mode(run) == 0o700
    run.chmod(0o1770)
    monkeypatch.setattr(partusers, "group_ids", lambda: {run.stat().st_gid})
    init.found(folder, site_file, {}, 1000.0)
    assert mode(run) == 0o1770
