"""OCI images as folders: manifests, whiteouts, and layers that would harm."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard

from images import layers
from images.layers import BadImage, Budget

TAR = "application/vnd.oci.image.layer.v1.tar"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def entry(name: str, content: bytes | str | None = None, **fields: Any) -> tuple[Any, bytes]:
    """A folder (no content), a file (bytes) or a symbolic link (text)."""
    info = tarfile.TarInfo(name)
    info.uid, info.gid, info.mode = os.getuid(), os.getgid(), 0o755
    if content is None:
        info.type = tarfile.DIRTYPE
    elif isinstance(content, str):
        info.type, info.linkname = tarfile.SYMTYPE, content
    else:
        info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content if isinstance(content, bytes) else b""


def tar(*entries: tuple[Any, bytes]) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    return whole.getvalue()


def applied(folder: Path, *archives: bytes, budget: Budget | None = None) -> Path:
    tree = folder / "root"
    tree.mkdir()
    for archive in archives:
        layers.apply_layer(io.BytesIO(archive), tree, budget or Budget(1 << 30, 10_000))
    return tree


def names(tree: Path) -> set[str]:
    return {str(path.relative_to(tree)) for path in tree.rglob("*")}


def blob(layout: Path, content: bytes, kind: str, **more: Any) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    (layout / "blobs/sha256").mkdir(parents=True, exist_ok=True)
    (layout / "blobs/sha256" / digest).write_bytes(content)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content), **more}


def write_layout(
    folder: Path, archives: Sequence[bytes], kind: str = TAR, tags: Sequence[str] = ("web",)
) -> Path:
    layout = folder / "layout"
    found = [blob(layout, each, kind) for each in archives]
    document = json.dumps({"schemaVersion": 2, "layers": found}).encode()
    listed = [
        blob(layout, document, MANIFEST, annotations={"org.opencontainers.image.ref.name": tag})
        for tag in tags
    ]
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (layout / "index.json").write_text(json.dumps({"manifests": listed}))
    return layout


def test_later_layers_replace_add_and_hide(tmp_path: Path) -> None:
    first = tar(
        entry("etc"),
        entry("etc/kept", b"1"),
        entry("etc/changed", b"old"),
        entry("etc/gone", b"x"),
        entry("var/lib/a/deep", b"x"),
        entry("usr/lib"),
        entry("lib", "usr/lib"),
        entry("was-folder/inside", b"x"),
    )
    second = tar(
        entry("etc/changed", b"new", mode=0o4755),
        entry("etc/.wh.gone", b""),
        entry("var/lib/b", b"new in this layer"),
        entry("var/lib/.wh..wh..opq", b""),
        entry("lib/through", b"a folder that a link leads to"),
        entry("was-folder", b"a file"),
        entry(".wh..wh.plnk", b""),
    )
    tree = applied(tmp_path, first, second)
    assert names(tree) == {
        *("etc", "etc/kept", "etc/changed", "var", "var/lib", "var/lib/b"),
        *("usr", "usr/lib", "usr/lib/through", "lib", "was-folder"),
    }
    assert (tree / "etc/changed").read_bytes() == b"new"
    assert (tree / "etc/changed").stat().st_mode & 0o7777 == 0o4755
    assert (tree / "lib").is_symlink()


def test_hard_links_attributes_and_times_are_kept(tmp_path: Path) -> None:
    told = {"SCHILY.xattr.user.note": "a", "SCHILY.xattr.trusted.overlay.opaque": "y"}
    tree = applied(
        tmp_path,
        tar(
            entry("a", b"same", pax_headers=told, mtime=1_700_000_000),
            entry("b", b"", type=tarfile.LNKTYPE, linkname="a", size=0),
        ),
    )
    assert (tree / "a").stat().st_ino == (tree / "b").stat().st_ino
    assert (tree / "a").stat().st_mtime == 1_700_000_000
    assert os.listxattr(tree / "a") == ["user.note"]


def test_links_never_lead_out_of_the_tree(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    tree = applied(
        tmp_path,
        tar(
            entry("up", "../../../outside"),
            entry("abs", str(outside)),
            entry("up/evil", b"x"),
            entry("abs/evil", b"x"),
            entry("abs/.wh.evil", b""),
        ),
    )
    assert [*outside.iterdir()] == []
    assert (tree / "outside/evil").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("hostile", "words"),
    [
        (entry("../evil", b"x"), "leads out"),
        (entry("/etc/evil", b"x"), "leads out"),
        (entry("a/../../evil", b"x"), "leads out"),
        (entry(".wh...", b""), "hides no file"),
        (entry("a/.wh.", b""), "hides no file"),
        (entry("disk", type=tarfile.BLKTYPE, devmajor=8), "is a device"),
        (entry("a", type=tarfile.CHRTYPE, devmajor=1, devminor=1), "is a device"),
        (entry("a", type=tarfile.FIFOTYPE), "is a device, a pipe"),
        (entry("a", type=tarfile.LNKTYPE, linkname="../../etc/passwd"), "leads out"),
        (entry("a", type=tarfile.LNKTYPE, linkname="none"), "no such file"),
        (entry("a", type=tarfile.LNKTYPE, linkname="."), "no such file"),
        (entry("a", b"", pax_headers={"comment": "x" * (5 << 20)}), "a header of"),
        (entry("file/below", b"x"), "is no folder"),
        (entry("loop/below", b"x"), "too many symbolic links"),
        (entry("n" * 300, b"x"), "File name too long"),
    ],
)
def test_a_hostile_entry_is_refused_and_nothing_lands_outside(
    tmp_path: Path, hostile: tuple[Any, bytes], words: str
) -> None:
    with pytest.raises(BadImage, match=words):
        applied(tmp_path, tar(entry("file", b""), entry("loop", "loop"), hostile))
    assert [each.name for each in tmp_path.iterdir()] == ["root"]


@pytest.mark.parametrize("told", [{"mtime": "inf"}, {"mtime": "nan"}, {"mtime": "1e300"}])
def test_a_time_that_no_file_can_have_is_refused(tmp_path: Path, told: dict[str, str]) -> None:
    with pytest.raises(BadImage, match="the archive is damaged"):
        applied(tmp_path, tar(entry("etc/f", b"x", pax_headers=told)))


def test_an_owner_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadImage):
        applied(tmp_path, tar(entry("f", b"x", pax_headers={"uid": str(1 << 70)})))


def test_devices_in_dev_are_left_to_the_kernel(tmp_path: Path) -> None:
    made = tar(entry("dev"), entry("dev/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3))
    assert names(applied(tmp_path, made)) == {"dev"}


@pytest.mark.parametrize("budget", [Budget(2 << 20, 100), Budget(1 << 30, 3)])
def test_what_unpacks_to_too_much_is_refused(tmp_path: Path, budget: Budget) -> None:
    big = tar(*(entry(f"f{n}", bytes(1 << 20)) for n in range(4)))
    with pytest.raises(BadImage, match="the most that is accepted"):
        applied(tmp_path, big, budget=budget)


@pytest.mark.parametrize("cut", [700, 1500])
def test_a_layer_that_is_cut_short_is_refused(tmp_path: Path, cut: int) -> None:
    with pytest.raises(BadImage, match=r"damaged|cut short"):
        applied(tmp_path, tar(entry("a", bytes(1000)), entry("b", b"x"))[:cut])


def test_a_layer_may_end_without_the_zeros_that_fill_its_last_block(tmp_path: Path) -> None:
    whole = tar(entry("a", bytes(1000)), entry("b", b"x"))
    end = whole.rindex(b"x") + 1
    assert names(applied(tmp_path, whole[:end])) == {"a", "b"}


@pytest.mark.parametrize(
    ("kind", "pack"),
    [
        (TAR, bytes),
        (f"{TAR}+gzip", gzip.compress),
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", gzip.compress),
        (f"{TAR}+zstd", zstandard.compress),
    ],
)
def test_a_layout_is_applied_layer_by_layer(
    tmp_path: Path, kind: str, pack: Callable[[bytes], bytes]
) -> None:
    archives = [pack(tar(entry("a", b"1"), entry("b", b"1"))), pack(tar(entry(".wh.a", b"")))]
    layout = write_layout(tmp_path, archives, kind)
    tree = tmp_path / "root"
    tree.mkdir()
    layers.apply(layout, layers.layers_of(layout), tree)
    assert names(tree) == {"b"}


def test_an_index_of_platforms_gives_this_one(tmp_path: Path) -> None:
    layout = write_layout(tmp_path, [tar(entry("a", b"1"))])
    inner = json.loads((layout / "index.json").read_text())["manifests"][0]
    arm = {"os": "linux", "architecture": "arm64"}
    for platforms, words in (
        ([arm, {"os": "linux", "architecture": "amd64"}], ""),
        ([arm], "for linux/arm64, not for linux/amd64"),
    ):
        listed = [{**inner, "platform": each} for each in platforms]
        outer = blob(layout, json.dumps({"manifests": listed}).encode(), INDEX)
        (layout / "index.json").write_text(json.dumps({"manifests": [outer]}))
        if words:
            with pytest.raises(BadImage, match=words):
                layers.layers_of(layout)
        else:
            assert len(layers.layers_of(layout)) == 1


def test_the_tag_says_which_image_of_several(tmp_path: Path) -> None:
    layout = write_layout(tmp_path, [tar(entry("a", b"1"))], tags=("web", "db"))
    with pytest.raises(BadImage, match=r"has 2 images: say which with --tag \(db, web\)"):
        layers.layers_of(layout)
    assert len(layers.layers_of(layout, "db")) == 1
    with pytest.raises(BadImage, match="has no image 'x', but: db, web"):
        layers.layers_of(layout, "x")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda layout, file: file.write_bytes(file.read_bytes() + b"x"), "is damaged"),
        (lambda layout, file: file.write_bytes(b"x" * file.stat().st_size), "is damaged"),
        (lambda layout, file: file.unlink(), "is missing"),
        (lambda layout, file: (file.unlink(), file.symlink_to("/etc/passwd")), "is no file"),
        (lambda layout, file: (layout / "oci-layout").unlink(), "not an OCI image layout"),
        (lambda layout, file: (layout / "index.json").write_text("[]"), "is no JSON object"),
        (lambda layout, file: (layout / "index.json").write_text("{}"), "no list of manifests"),
    ],
)
def test_a_damaged_layout_is_refused(
    tmp_path: Path, harm: Callable[[Path, Path], Any], words: str
) -> None:
    layer = tar(entry("a", b"1"))
    layout = write_layout(tmp_path, [layer])
    harm(layout, layout / "blobs/sha256" / hashlib.sha256(layer).hexdigest())
    tree = tmp_path / "root"
    tree.mkdir()
    with pytest.raises(BadImage, match=words):
        layers.apply(layout, layers.layers_of(layout), tree)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"mediaType": f"{TAR}+encrypted"}, "of the type .* is not known"),
        ({"mediaType": TAR, "digest": "sha256:../../../../etc/passwd"}, "a blob's digest is"),
        ({"mediaType": TAR, "digest": "sha512:00"}, "sha256 alone"),
    ],
)
def test_a_layer_of_a_strange_kind_is_refused(
    tmp_path: Path, layer: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadImage, match=words):
        layers.apply(tmp_path, [layer], tmp_path)
