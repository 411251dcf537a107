"""The wheel: what is in it, and that it works where no checkout is."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from cod.client import Client, Unreachable
from trampoline import build

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.xdist_group("wheel")]

ROOT = Path(__file__).resolve().parents[2]
# a UNIX socket's path is limited to 107 bytes; pytest's folders are long
SHORT = Path(f"/tmp/codw{os.getpid()}")


class Installed:
    """An environment with the wheel, and this one's other packages behind it, so that no network is
    needed."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        venv.create(folder, with_pip=False, symlinks=True)
        self.packages = next((folder / "lib").glob("python*/site-packages"))
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "-q",
                "--python",
                str(folder / "bin/python"),
                "install",
                "--no-deps",
                "--no-index",
                str(wheel),
            ],
            check=True,
            cwd="/",
        )
        (self.packages / "rest.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")

    def command(self, *words: str) -> list[str]:
        return [str(self.folder / "bin/cod"), *words]

    def cod(self, *words: str) -> str:
        return subprocess.run(
            self.command(*words), cwd="/", check=True, capture_output=True, text=True
        ).stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"  # what git would hand out, without the checkout's build/ and caches
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    (tree / "build/widgets").mkdir(parents=True)  # as `make widgets` leaves it
    (tree / "build/widgets/uplot.js").write_text("uPlot")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "-q",
            "wheel",
            "--no-deps",
            "--wheel-dir",
            str(folder),
            str(tree),
        ],
        check=True,
    )
    (wheel,) = folder.glob("cod-*.whl")
    return Installed(folder / "env", wheel)


@pytest.fixture(scope="module")
def site(installed: Installed) -> Iterator[Path]:
    """The folder of a new site."""
    installed.cod("init", "--dir", str(SHORT))
    yield SHORT
    shutil.rmtree(SHORT)


def test_only_cod_is_at_the_top_and_its_files_are_inside(installed: Installed) -> None:
    tops = {path.name for path in installed.packages.iterdir()}
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert tops == {"cod", f"cod-{version}.dist-info", "rest.pth"}
    shipped = {path.name for path in (installed.packages / "cod/_data").iterdir()}
    folders = {"schema", "trampoline", "images", "web"}
    assert shipped == folders | {"widgets"}
    widget = installed.packages / "cod/_data/widgets/uplot.js"
    assert widget.read_text() == "uPlot"
    for name in folders:
        ours = {
            str(path.relative_to(ROOT / name))
            for path in (ROOT / name).rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        }
        theirs = {
            str(path.relative_to(installed.packages / "cod/_data" / name))
            for path in (installed.packages / "cod/_data" / name).rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        }
        assert theirs == ours
    said = subprocess.run(
        [str(installed.folder / "bin/python"), "-c", "import cod; print(cod.__file__)"],
        cwd="/",
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert said.strip() == str(installed.packages / "cod/__init__.py")


def test_commands_that_need_no_server(installed: Installed) -> None:
    assert "Cluster-on-Demand" in installed.cod("--help")
    assert installed.cod("states", "--dot").startswith("digraph")
    assert installed.cod("--version").startswith("cod ")
    assert installed.cod("simulate", "web", "--days", "0.05").startswith("web: 60 nodes")


def test_a_new_site_is_its_owners_alone(site: Path) -> None:
    private = {
        name: (site / name).stat().st_mode & 0o077 for name in ("site.toml", "cod.db", "run")
    }
    assert private == dict.fromkeys(private, 0)


def test_the_api_answers(installed: Installed, site: Path) -> None:
    with open(site / "log", "wb") as log:
        server = subprocess.Popen(
            installed.command("--site", f"{site}/site.toml", "serve", "--only", "web"),
            cwd="/",
            stdout=log,
            stderr=log,
        )
    try:
        end = time.monotonic() + 120
        while not (health := _health(site)):
            assert server.poll() is None, (site / "log").read_text()
            assert time.monotonic() < end
            time.sleep(0.05)
        assert health["ok"] is True
        private = {
            path.name: path.stat().st_mode & 0o077
            for path in site.iterdir()
            if path.name.startswith("cod.db")
        }
        assert private == dict.fromkeys(private, 0)
        assert (site / "run/api.sock").stat().st_mode & 0o077 == 0
    finally:
        server.terminate()
        assert server.wait(60) == 0


def _health(site: Path) -> dict[str, object]:
    try:
        with Client(str(site / "run/api.sock")) as client:
            return dict(client.get("/health"))
    except Unreachable:
        return {}


@pytest.mark.nightly
def test_the_trampoline_is_made_from_the_wheel_as_from_the_checkout(
    installed: Installed, site: Path
) -> None:
    cache = ROOT / "build/cache/trampoline"
    # up to date already, if `make build` was run
    made = build.build("lab", ROOT / "build/trampoline", cache)
    (site / "cache/trampoline").mkdir(parents=True)
    # the distribution's packages: not fetched again
    (site / "cache/trampoline/packages").symlink_to(cache)
    installed.cod("--site", f"{site}/site.toml", "trampoline", "build", "lab")
    for name in ("vmlinuz", "ramdisk"):
        assert (site / "boot/trampoline" / name).read_bytes() == (made / name).read_bytes()


@pytest.mark.nightly
def test_images_are_made_from_the_wheel(installed: Installed, tmp_path: Path) -> None:
    facts = json.loads(
        installed.cod("image", "make", "opaque", "--into", str(tmp_path / "made"), "--json")
    )
    assert (
        facts["sha256"] == hashlib.sha256((tmp_path / "made/opaque.img").read_bytes()).hexdigest()
    )
    assert (tmp_path / "made/opaque.xml").read_bytes() == (ROOT / "images/opaque.xml").read_bytes()
    assert "next: cod image add opaque " in installed.cod(
        "image", "make", "opaque", "--into", str(tmp_path / "made")
    )
