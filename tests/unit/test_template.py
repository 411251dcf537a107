"""Configuration templates: what the schema takes, what parse refuses, which image goes to which
node."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from email import message_from_string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod import data
from cod.model import Image, Refused, TypeRules
from cod.orders import ImageSource, Partition
from cod.policy.nodes import inner_vcm, prime, template
from cod.policy.nodes.seed import (
    SeedPart,
    installation,
    login_keys,
    metadata_service,
    seed_files,
)
from cod.wire import xmldoc

SHA = "ab" * 32
BASE = "http://10.0.0.1:8069/images"
NODE = """<node version="1"><system/><firmware kind="bios"/><memory mib="4090"/>
<cpu count="2" sockets="1" arch="x86_64"/><nic name="eth0" mac="52:54:00:00:00:01" link="up" boot="yes"/>
<disk name="vda" size="20000000000" transport="virtio" local="yes" rotational="no" removable="no"/>
<kernel release="6"/></node>"""

LAYOUT = (
    '<layout table="gpt"><partition number="1" size="{}" type="linux"/><partition number="2"'
    ' type="linux"/></layout><image target="2" name="any"/>'
)


def checked(document: str) -> template.Configuration:
    """Check as the edge does: the schema first."""
    xmldoc.parse(document.encode(), "template")
    return template.parse(document)


def image(name: str, **columns: object) -> Image:
    row = Image(
        id=1,
        name=name,
        group_id=None,
        state="ready",
        format="raw",
        size=1000,
        used=1,
        stored=1,
        sha256="",
        digest=f"digest-of-{name}",
        created_at=0.0,
        reason="",
        content="disk",
    )
    return replace(row, **columns)


def wrap(body: str, **attributes: str) -> str:
    return (
        "<template"
        f' name="t"{"".join(f" {k}={v!r}" for k, v in attributes.items())}>{body}</template>'
    )


def refusal(document: str) -> str:
    with pytest.raises(Refused) as caught:
        checked(document)
    return caught.value.sentence


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("attributes", "wipe"), [({}, ""), ({"wipe": "zero"}, "zero"), ({"wipe": "purge"}, "purge")]
)
def test_a_template_says_how_its_disks_are_erased_at_least(
    attributes: dict[str, str], wipe: str
) -> None:
    document = wrap('<image target="disk" name="a"/>', **attributes)
    assert checked(document).wipe == wipe


def test_images_go_into_partitions_of_the_map_that_another_brings() -> None:
    """The whole disk's may come first or last; a layout of its own goes without one."""
    whole, part = '<image target="disk" name="map"/>', '<image target="3" name="root"/>'
    for body in (whole + part, part + whole):
        assert {one.target for one in checked(wrap(body)).images} == {"disk", "3"}
    with pytest.raises(Refused, match="which the layout does not have"):
        checked(wrap(part))


def test_no_other_wipe_is_accepted() -> None:
    with pytest.raises(xmldoc.BadDocument):
        checked(wrap('<image target="disk" name="a"/>', wipe="tables"))


def test_the_schema_s_own_examples_are_good() -> None:
    documentation = data.path("schema/template.rng").read_text().split("-->")[0]
    examples = re.findall(r"<template .*?</template>", documentation, re.S)
    read = [checked(example) for example in examples]
    assert [one.name for one in read] == ["web", "plain", "live"]
    web, plain, live = read
    assert web.partitions == (
        Partition(1, 512 << 20, "esp", "EFI"),
        Partition(2, 8 << 30, "linux", "root"),
        Partition(3, 0, "linux", "data"),
    )
    assert (web.cache, web.verify, web.disk, web.table, web.seed) == (
        True,
        False,
        "smallest",
        "gpt",
        True,
    )
    assert web.ready == template.Ready(80, "/healthy")
    assert web.user_data.startswith("#cloud-config")
    assert template.image_names(web) == {"debian-12-esp", "debian-12-root-virtio", "debian-12-root"}
    assert (plain.cache, plain.disk, plain.table, plain.seed) == (False, "first", "keep", False)
    assert plain.ready == template.Ready()
    assert live.diskless
    assert live.diskless.cmdline == "console=ttyS0 boot=live"
    assert template.image_names(live) == {"debian-12-kernel", "debian-12-live"}


@pytest.mark.parametrize(
    ("element", "ready"),
    [
        ("", template.Ready()),
        ('<ready by="dhcp"/>', template.Ready()),
        ('<ready port="80"/>', template.Ready(80)),
        ('<ready by="dhcp" port="80" path="/x"/>', template.Ready(80, "/x")),
        ('<ready by="port" port="22"/>', template.Ready(22, by="port")),
        ('<ready by="time" seconds="90"/>', template.Ready(by="time", seconds=90)),
        ('<ready by="none"/>', template.Ready(by="none")),
    ],
)
def test_what_makes_its_nodes_active(element: str, ready: template.Ready) -> None:
    assert checked(wrap(f'<image target="disk" name="a"/>{element}')).ready == ready


@pytest.mark.parametrize(
    "body",
    [
        '<image target="disk"/>',
        '<image target="disk" name="a" url="http://x/y"/>',
        f'<image target="disk" url="https://x/y" size="1" sha256="{SHA}" compression="raw"/>',
        f'<image target="disk" url="http://x/y" size="1" sha256="{SHA}" compression="xz"/>',
        '<image target="disk" url="http://x/y" size="1" sha256="1234" compression="raw"/>',
        '<image target="0" name="a"/>',
        '<image target="disk" name="A"/>',
        '<image target="disk" name="a"/><disk select="fastest"/>',
        '<image target="disk" name="a"/><ready port="0"/>',
        '<image target="disk" name="a"/><ready/>',
        '<image target="disk" name="a"/><ready by="port"/>',
        '<image target="disk" name="a"/><ready by="time"/>',
        '<image target="disk" name="a"/><ready by="time" seconds="0"/>',
        '<image target="disk" name="a"/><ready by="time" seconds="5" port="80"/>',
        '<image target="disk" name="a"/><ready by="none" port="80"/>',
        '<image target="disk" name="a"/><ready by="luck"/>',
        '<image target="disk" name="a"/><ready port="80" path="x"/>',
        (
            '<image target="1" name="a"/><layout table="bsd"><partition number="1"'
            ' type="linux"/></layout>'
        ),
        '<image target="1" name="a"/><layout table="gpt"/>',
        '<boot mode="diskless"/>',
        '<boot mode="diskless"><kernel image="k"/><cmdline>a\nb</cmdline></boot>',
        '<image target="disk" name="a"><installer kind="program" name="p"/></image>',
        '<image target="disk" name="a"/><surprise/>',
    ],
)
def test_the_schema_refuses(body: str) -> None:
    with pytest.raises(xmldoc.BadDocument):
        checked(wrap(body))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "needs an image"),
        ('<image target="1" name="a"/>', "which the layout does not have"),
        (
            (
                '<layout table="gpt"><partition number="1" type="linux"/></layout><image'
                ' target="disk" name="a"/>'
            ),
            "which the layout does not have",
        ),
        (
            (
                '<layout table="gpt"><partition number="1" type="linux"/><partition number="2"'
                ' size="1GB" type="linux"/></layout><image target="1" name="a"/>'
            ),
            "only the last partition",
        ),
        (
            (
                '<layout table="gpt"><partition number="1" size="1GB" type="linux"/><partition'
                ' number="1" type="linux"/></layout><image target="1" name="a"/>'
            ),
            "the same number",
        ),
        (
            (
                '<layout table="mbr"><partition number="5" type="linux"/></layout><image target="5"'
                ' name="a"/>'
            ),
            "four",
        ),
        (
            (
                '<layout table="mbr"><partition number="1" type="bios"/></layout><image target="1"'
                ' name="a"/>'
            ),
            "no GUIDs",
        ),
        (
            '<image target="disk" name="a"/><image target="disk" name="b"/>',
            "after one that always fits",
        ),
        (
            '<image target="disk" name="a"><installer kind="qcow2"/></image>',
            "the installer qcow2 is for a URL",
        ),
        (
            (
                '<layout table="gpt"><partition number="1" size="1GB"'
                ' type="linux"/></layout><image target="1" url="http://x/y" size="1001MB"'
                f' sha256="{SHA}" compression="raw"/>'
            ),
            "larger than",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(body: str, words: str) -> None:
    assert words in refusal(wrap(body))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("512MiB", 512 << 20),
        ("20GB", 20 * 10**9),
        ("2 TiB", 2 << 40),
        ("1.5GB", 15 * 10**8),
    ],
)
def test_sizes_are_written_as_everywhere(text: str, size: int) -> None:
    assert checked(wrap(LAYOUT.format(text))).partitions[0].size == size


@pytest.mark.parametrize("text", ["", "GB", "1QB", "-1", "0"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(xmldoc.BadDocument):
        checked(wrap(LAYOUT.format(text)))


# ---------------------------------------------------------------- for one node


def test_a_named_image_becomes_the_folder_it_is_served_from() -> None:
    parts = prime.resolve(
        checked(wrap('<image target="disk" name="a"/>', verify="yes")),
        NODE,
        {"a": image("a", size=4096)},
        BASE,
    )
    assert parts == prime.Parts(
        "first",
        True,
        "keep",
        (),
        (ImageSource("disk", f"{BASE}/digest-of-a", "chunks", "digest-of-a", 4096),),
        0,
    )


def test_an_image_elsewhere_keeps_its_url_and_its_installer() -> None:
    document = wrap(
        f'<image target="disk" url="http://x/y.gz" size="1GiB" sha256="{SHA}" compression="gzip">'
        f'<installer kind="program" name="p" url="http://x/p" sha256="{SHA[::-1]}"/></image>'
    )
    (source,) = prime.resolve(checked(document), NODE, {}, BASE).images
    assert source == ImageSource(
        "disk", "http://x/y.gz", "gzip", SHA, 1 << 30, "http://x/p", SHA[::-1]
    )


CHOICE = wrap(
    "".join(
        f'<image target="disk" name="{name}">{when}</image>'
        for name, when in [
            ("for-nvme", '<when><disk><transport equal="nvme"/></disk></when>'),
            ("for-large", '<when><memory><mib min="4GiB"/></memory></when>'),
            ("for-small", '<when><memory><mib max="4GiB"/></memory></when>'),
        ]
    )
)
IMAGES = {name: image(name) for name in ("for-nvme", "for-large", "for-small")}


@pytest.mark.parametrize(
    ("change", "chosen"),
    [
        # 4090 MiB is what firmware leaves of 4 GiB: the canonical form says 4096
        (("", ""), "for-large"),
        (("4090", "2048"), "for-small"),
        (("virtio", "nvme"), "for-nvme"),
    ],
)
def test_the_first_image_that_fits_is_chosen(change: tuple[str, str], chosen: str) -> None:
    parts = prime.resolve(
        checked(CHOICE), NODE.replace(*change) if change[0] else NODE, IMAGES, BASE
    )
    assert parts.images[0].url == f"{BASE}/digest-of-{chosen}"


@given(st.integers(1, 1 << 20), st.booleans())
def test_some_image_fits_every_node_or_none_does(mib: int, nvme: bool) -> None:
    node = NODE.replace("4090", str(mib)).replace("virtio", "nvme" if nvme else "virtio")
    (source,) = prime.resolve(template.parse(CHOICE), node, IMAGES, BASE).images
    assert ("nvme" in source.url) == nvme
    without = wrap(CHOICE.split(">", 1)[1].rsplit("<image", 2)[0])
    if not nvme:
        with pytest.raises(
            Refused, match="image: one for target disk that fits the hardware wanted"
        ):
            prime.resolve(template.parse(without), node, IMAGES, BASE)


@pytest.mark.parametrize(
    ("row", "code", "words"),
    [
        (None, "not_found", "there is no image 'a'"),
        (image("a", state="ingesting"), "conflict", "is ingesting"),
        (image("a", state="failed"), "conflict", "is failed"),
        (image("a", content="file"), "invalid", "holds a file"),
        (image("a", size=(1 << 30) + 1), "invalid", "larger than its partition"),
    ],
)
def test_images_that_cannot_be_used(row: Image | None, code: str, words: str) -> None:
    document = wrap(
        '<layout table="gpt"><partition number="1" size="1GiB" type="linux"/></layout>'
        '<image target="1" name="a"/>'
    )
    with pytest.raises(Refused, match=words) as caught:
        prime.resolve(checked(document), NODE, {"a": row} if row else {}, BASE)
    assert caught.value.code == code


SEED = '<personalise seed="nocloud"/>'
FOUR = "".join(f'<partition number="{n}" size="1MiB" type="linux"/>' for n in (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("body", "row", "words"),
    [
        ('<image target="disk" name="a"/>', image("a", table="none"), "no partition table"),
        ('<image target="disk" name="a"/>', image("a", content="partition"), "no partition table"),
        ('<image target="disk" name="a"/>', image("a", table="full"), "four primary"),
        (
            f'<layout table="mbr">{FOUR}</layout><image target="1" name="a"/>',
            image("a"),
            "which the layout takes",
        ),
    ],
)
def test_a_seed_without_a_free_slot_is_refused_with_the_template(
    body: str, row: Image, words: str
) -> None:
    with pytest.raises(Refused, match=words):
        prime.check_images(checked(wrap(body + SEED)), {"a": row})
    prime.check_images(checked(wrap(body)), {"a": row})


@pytest.mark.parametrize("table", ["gpt", "mbr", ""])
def test_a_seed_that_may_have_a_slot_is_taken(table: str) -> None:
    there = {"a": image("a", table=table)}
    prime.check_images(checked(wrap('<image target="disk" name="a"/>' + SEED)), there)


def test_hardware_that_the_template_does_not_take() -> None:
    document = wrap(
        '<requires><memory><mib min="8GiB"/></memory></requires><image target="disk" name="a"/>'
    )
    with pytest.raises(Refused, match="memory/mib: at least 8GiB wanted, 4 GiB found"):
        prime.resolve(checked(document), NODE, {"a": image("a")}, BASE)


@pytest.mark.parametrize(
    ("inner", "sentence"),
    [
        (
            (
                '<requires>\n<memory>\n<mib min="8GiB" max="4GiB"/></memory></requires><image'
                ' target="disk" name="a"/>'
            ),
            "in <requires>, line 3: memory/mib: min 8GiB is above max 4GiB",
        ),
        (
            (
                '<image target="disk" name="a"><when><cpu><arch'
                ' min="64"/></cpu></when></image><image target="disk" name="b"/>'
            ),
            "in <when>, line 1: cpu/arch: min compares numbers",
        ),
    ],
)
def test_hardware_that_no_node_can_have_is_refused(inner: str, sentence: str) -> None:
    with pytest.raises(Refused) as caught:
        template.check_hardware(checked(wrap(inner)))
    assert sentence in caught.value.sentence
    template.check_hardware(checked(CHOICE))


def test_the_sites_rules_hold_for_what_a_template_asks() -> None:
    document = checked(
        wrap(
            '<requires><firmware><version newer="1"/></firmware></requires>'
            '<image target="disk" name="a"/>'
        )
    )
    node = NODE.replace('kind="bios"', 'kind="bios" version="2"')
    with pytest.raises(Refused, match="firmware/version: newer than version 1 wanted, none found"):
        prime.resolve(document, node, {"a": image("a")}, BASE)
    assert prime.resolve(document, node, {"a": image("a")}, BASE, TypeRules(ignore=())).images


def test_a_diskless_template_names_files() -> None:
    document = wrap(
        '<boot mode="diskless"><kernel image="k"/><ramdisk url="http://x/r1"/><ramdisk'
        ' image="r2"/></boot>'
    )
    diskless = checked(document).diskless
    assert diskless
    images = {"k": image("k", content="file"), "r2": image("r2", content="file")}
    assert prime.boot_files(diskless, images, BASE) == (
        f"{BASE}/digest-of-k/file",
        ("http://x/r1", f"{BASE}/digest-of-r2/file"),
    )
    with pytest.raises(Refused, match="holds a disk"):
        prime.boot_files(diskless, images | {"k": image("k")}, BASE)


def seed(configuration: template.Configuration, *keys: str) -> dict[str, str]:
    return seed_with(configuration, SeedPart(), login_keys(keys))


def seed_with(configuration: template.Configuration, *parts: SeedPart) -> dict[str, str]:
    return seed_files(
        configuration, instance="1.2", fqdn="n1.web.example", mac="52:54:00:00:00:01", parts=parts
    )


def test_seeds() -> None:
    plain = checked(wrap('<image target="disk" name="a"/>'))
    assert seed(plain) == {}
    seeded = checked(wrap('<image target="disk" name="a"/><personalise seed="nocloud"/>'))
    assert seed(seeded, "ssh-ed25519 AAA", "ssh-ed25519 BBB") == {
        "meta-data": (
            '{"instance-id": "1.2", "local-hostname": "n1.web.example", '
            '"public-keys": ["ssh-ed25519 AAA", "ssh-ed25519 BBB"]}\n'
        ),
        "user-data": "#cloud-config\n{}\n",
        "network-config": (
            '{"version": 2, "ethernets": {"boot": {"match": {"macaddress": "52:54:00:00:00:01"}, '
            '"dhcp4": true}}}\n'
        ),
        "authorized_keys": "ssh-ed25519 AAA\nssh-ed25519 BBB\n",
        "vendor-data": '#cloud-config\n{"disable_root": false}\n',
    }


def test_a_seed_may_send_cloud_init_to_the_metadata_service() -> None:
    """Keys in it would hide those of the service: cloud-init lets the seed's meta-data win."""
    seeded = checked(
        wrap('<image target="disk" name="a"/><personalise seed="nocloud" seedfrom="metadata"/>')
    )
    parts = [
        metadata_service("http://10.0.0.1:8069/"),
        installation(5, 1700.9, "5e" * 32),
        login_keys(["ssh-ed25519 AAA"]),
    ]
    files = seed_files(
        seeded,
        instance="1.2",
        fqdn="n1.web.example",
        mac="52:54:00:00:00:01",
        parts=parts,
        url="http://10.0.0.1:8069/",
    )
    assert json.loads(files["meta-data"]) == {
        "instance-id": "1.2",
        "local-hostname": "n1.web.example",
        "cod-installation": f"5.1700 {'5e' * 32}",
        "seedfrom": "http://10.0.0.1:8069/nocloud/",
    }
    assert files["authorized_keys"] == "ssh-ed25519 AAA\n", (
        "images that read the seed themselves know no seedfrom"
    )
    with pytest.raises(Refused, match="without seedfrom"):
        inner_vcm.check(seeded)


def test_a_seed_names_the_metadata_service() -> None:
    seeded = checked(wrap('<image target="disk" name="a"/><personalise seed="nocloud"/>'))
    meta = json.loads(seed_with(seeded, metadata_service("http://10.0.0.1:8069/"))["meta-data"])
    assert meta["cod-metadata"] == "http://10.0.0.1:8069/latest/"
    assert "seedfrom" not in meta


@pytest.mark.parametrize(
    "written",
    [
        "#cloud-config\npackages:\n  - vim\n",
        """
        #cloud-config
        packages:
          - vim
""",
    ],
)
def test_user_data_begins_with_its_first_line_however_it_is_laid_out(written: str) -> None:
    """cloud-init knows by the first line what it is."""
    seeded = checked(
        wrap(
            f'<image target="disk" name="a"/><personalise seed="nocloud"><user-data>{written}'
            "</user-data></personalise>"
        )
    )
    assert seed(seeded)["user-data"] == "#cloud-config\npackages:\n  - vim\n"


def test_secret_user_data_are_in_the_seed_on_the_disk_and_nowhere_else() -> None:
    given = '<user-data secret="yes">KEY=x\n</user-data></personalise>'
    on_disk = wrap(f'<image target="disk" name="a"/><personalise seed="nocloud">{given}')
    assert checked(on_disk).secret
    assert not checked(on_disk.replace(' secret="yes"', "")).secret
    assert seed(checked(on_disk))["user-data"] == "KEY=x\n"
    for told in (
        on_disk.replace('seed="nocloud"', 'seed="nocloud" seedfrom="metadata"'),
        on_disk.replace('seed="nocloud"', 'seed="none"'),
        wrap(
            f'<boot mode="diskless"><kernel image="k"/></boot><personalise seed="nocloud">{given}'
        ),
    ):
        with pytest.raises(Refused, match="need a seed on the node's disk"):
            checked(told)


def test_vendor_data_of_two_kinds_travel_together() -> None:
    seeded = checked(wrap('<image target="disk" name="a"/><personalise seed="nocloud"/>'))
    script = SeedPart(scripts=("#!/bin/sh\necho\n",), files={"invitation": "x"})
    assert seed_with(seeded, script)["vendor-data"] == script.scripts[0], (
        "one document alone travels as it is"
    )
    both = seed_with(seeded, login_keys(["k"]), script)
    assert both["invitation"] == "x"
    parts = [
        (part.get_content_type(), part.get_payload())
        for part in message_from_string(both["vendor-data"]).walk()
    ]
    assert parts[1:] == [
        ("text/cloud-config", '#cloud-config\n{"disable_root": false}\n'),
        ("text/x-shellscript", "#!/bin/sh\necho\n"),
    ]


def test_cloud_config_of_several_subjects_is_one_and_loses_nothing() -> None:
    """cloud-init would let the last list of `write_files` replace the others."""
    seeded = checked(wrap('<image target="disk" name="a"/><personalise seed="nocloud"/>'))
    first = SeedPart(
        cloud_config={
            "write_files": [{"path": "/a"}],
            "ssh": {"emit_keys_to_console": False},
            "x": 1,
        }
    )
    second = SeedPart(
        {"tags": "t"},
        {"write_files": [{"path": "/b"}], "ssh": {"b": True}, "x": 2},
        ("#cloud-boothook\n",),
    )
    files = seed_with(seeded, first, second)
    assert json.loads(files["meta-data"])["tags"] == "t"
    config, hook = list(message_from_string(files["vendor-data"]).walk())[1:]
    assert json.loads(str(config.get_payload()).partition("\n")[2]) == {
        "write_files": [{"path": "/a"}, {"path": "/b"}],
        "ssh": {"emit_keys_to_console": False, "b": True},
        "x": 2,
    }
    assert hook.get_content_type() == "text/cloud-boothook"
