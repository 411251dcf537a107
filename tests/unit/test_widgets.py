"""What the portal's consoles and charts are drawn by: only the pinned packages are taken, and of
them only what is named."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import json
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def widgets() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("cod_widgets", ROOT / ".ci/widgets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def package(members: dict[str, bytes], *more: tarfile.TarInfo) -> bytes:
    """Return a package with these files, and with `more`, which is empty."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in more:
            archive.addfile(member)
    return made.getvalue()


def pinned(widgets: Any, content: bytes, **files: str) -> Any:
    digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
    return widgets.Widget("@a/b", "1.0.0", f"sha512-{digest}", "MIT", files or {"a.js": "b.js"})


def test_what_is_named_is_taken_and_nothing_else(widgets: Any) -> None:
    content = package(
        {"package/a.js": b"1", "package/lib/a.js": b"2", "package/package.json": b"{}"}
    )
    assert widgets.unpacked(pinned(widgets, content), content) == {"b.js": b"1"}


def test_another_digest_is_refused(widgets: Any) -> None:
    content = package({"package/a.js": b"1"})
    with pytest.raises(widgets.Wrong, match="not the pinned package"):
        widgets.unpacked(pinned(widgets, content), content + b"\0")


def other(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (other("/etc/cron.d/x", tarfile.REGTYPE), "outside of itself"),
        (other("package/../../x", tarfile.REGTYPE), "outside of itself"),
        (other("package\\..\\x", tarfile.REGTYPE), "outside of itself"),
        (other("package/x", tarfile.SYMTYPE, "/etc/passwd"), "else than files"),
        (other("package/a.js", tarfile.LNKTYPE, "/etc/passwd"), "else than files"),
        (other("package/x", tarfile.CHRTYPE), "else than files"),
        (other("package/x", tarfile.FIFOTYPE), "else than files"),
    ],
    ids=lambda value: value.name if isinstance(value, tarfile.TarInfo) else "",
)
def test_what_belongs_in_no_package_is_refused(
    widgets: Any, member: tarfile.TarInfo, why: str
) -> None:
    """Even of a package with the right digest nothing is written then."""
    content = package({"package/a.js": b"1"}, member)
    with pytest.raises(widgets.Wrong, match=why):
        widgets.unpacked(pinned(widgets, content), content)


def test_what_is_missing_too_long_or_cut_off_is_refused(
    widgets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = package({"package/b.js": b"1"})
    with pytest.raises(widgets.Wrong, match=r"lacks b\.js"):
        widgets.unpacked(pinned(widgets, content), content)
    content = package({"package/a.js": b"12345" * 5000})
    with pytest.raises(widgets.Wrong, match="cannot be read"):
        widgets.unpacked(pinned(widgets, content[:-40]), content[:-40])
    monkeypatch.setattr(widgets, "MOST", 10)
    with pytest.raises(widgets.Wrong, match="25000 bytes long"):
        widgets.unpacked(pinned(widgets, content), content)


def test_all_is_there_or_nothing_is_changed(
    widgets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = package({"package/a.js": b"1", "package/c.css": b"2"})
    one, two = pinned(widgets, content), pinned(widgets, content, **{"c.css": "c.css"})
    folder = tmp_path / "build/widgets"
    folder.parent.mkdir()
    monkeypatch.setattr(widgets, "WIDGETS", (one,))
    widgets.build(folder, lambda _: content)
    assert widgets.is_built(folder)
    assert (folder / "b.js").read_bytes() == b"1"
    monkeypatch.setattr(widgets, "WIDGETS", (one, two))
    assert not widgets.is_built(folder), "other packages are pinned now"

    def away(widget: Any) -> bytes:
        if widget is two:
            raise widgets.Away("no registry")
        return content

    with pytest.raises(widgets.Away):
        widgets.build(folder, away)
    assert sorted(path.name for path in folder.parent.rglob("*")) == [
        "b.js",
        "widgets",
        widgets.STAMP,
    ]
    widgets.build(folder, lambda _: content)
    assert widgets.is_built(folder)


def test_of_two_makes_one_fetches_and_the_other_finds_it_there(
    widgets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    content = package({"package/a.js": b"1"})
    monkeypatch.setattr(widgets, "WIDGETS", (pinned(widgets, content),))
    monkeypatch.setattr(widgets, "BUILT", tmp_path / "build/widgets")
    monkeypatch.setenv("PATH", str(tmp_path))  # without npm: it would take away what is there
    ended: list[int] = []
    other = threading.Thread(target=lambda: ended.append(widgets.main([])))
    with widgets.alone(widgets.BUILT):
        other.start()
        other.join(0.2)
        widgets.build(widgets.BUILT, lambda _: content)
    other.join(60)
    assert ended == [0]
    assert widgets.is_built(widgets.BUILT)
    assert capsys.readouterr().err == ""


def npm(folder: Path, script: str) -> str:
    program = folder / "npm"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_a_build_without_npm_or_its_registry_goes_on_and_says_so(
    widgets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    widget = pinned(widgets, b"")
    with pytest.raises(widgets.Away, match=r"no .*nowhere/npm here"):
        widgets.packed(widget, str(tmp_path / "nowhere/npm"))
    # as npm does: told to be silent it does not say why
    why = 'case "$*" in *silent*) ;; *) echo "npm error code ENOTFOUND" >&2 ;; esac; exit 1'
    offline = npm(tmp_path, why)
    with pytest.raises(widgets.Away, match=r"cannot bring @a/b 1\.0\.0: .*ENOTFOUND"):
        widgets.packed(widget, offline)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(widgets, "BUILT", tmp_path / "built")
    assert widgets.main([]) == 0
    assert "without xterm.js and uPlot" in capsys.readouterr().err
    assert not (tmp_path / "built").exists()


def test_a_build_with_another_package_than_the_pinned_one_fails(
    widgets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    content = package({"package/a.js": b"evil"})
    (tmp_path / "evil.tgz").write_bytes(content)
    asked = npm(tmp_path, f'echo "$@" >{tmp_path}/asked; /bin/cp {tmp_path}/evil.tgz "$5/x.tgz"')
    assert widgets.packed(pinned(widgets, content), asked) == content
    assert "pack @a/b@1.0.0 --ignore-scripts" in (tmp_path / "asked").read_text()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(widgets, "BUILT", tmp_path / "built")
    assert widgets.main([]) == 1
    assert "@xterm/xterm 6.0.0 is not the pinned package" in capsys.readouterr().err
    assert not (tmp_path / "built").exists()


def test_what_is_shipped_is_in_the_bill_of_materials(widgets: Any, tmp_path: Path) -> None:
    bill = tmp_path / "bill"
    bill.write_text('{"components": [{"name": "twisted"}]}')
    widgets.enter(bill, tmp_path / "widgets")
    assert json.loads(bill.read_text()) == {"components": [{"name": "twisted"}]}, "none are there"
    (tmp_path / "widgets").mkdir()
    (tmp_path / "widgets" / widgets.STAMP).write_text(widgets.stamp())
    widgets.enter(bill, tmp_path / "widgets")
    _, xterm, fit, uplot = json.loads(bill.read_text())["components"]
    assert [xterm["purl"], fit["purl"], uplot["purl"]] == [
        "pkg:npm/%40xterm/xterm@6.0.0",
        "pkg:npm/%40xterm/addon-fit@0.11.0",
        "pkg:npm/uplot@1.6.32",
    ]
    assert (xterm["group"], xterm["name"]) == ("@xterm", "xterm")
    assert [len(one["hashes"][0]["content"]) for one in (xterm, fit, uplot)] == [128] * 3
