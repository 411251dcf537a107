"""The boot decision's story, as a table."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from cod.model import DhcpClient, DhcpQuery, Image, Policy, Site, Subnet
from cod.policy.nodes import architecture, boot
from cod.policy.nodes.template import parse
from cod.states import NODE_TRANSITIONS, NodeEvent, NodeState

MAC, SECOND = "52:54:00:00:00:01", "52:54:00:00:00:02"
SUBNET = Subnet(
    "lab",
    "10.77.0.0/16",
    "10.77.0.1",
    ("10.77.1.0", "10.77.4.255"),
    ("10.77.128.0", "10.77.255.255"),
)
SITE = Site("test", "cod.test", (SUBNET,))
SERVED = 1000.0
PXE = ("firmware", "ipxe", "pxelinux", "httpclient")
LOCAL = parse('<template><image target="disk" name="debian"/></template>')
DISKLESS = parse(
    '<template><boot mode="diskless"><kernel image="k"/><ramdisk url="http://h/r"/>'
    "<cmdline>quiet</cmdline></boot></template>"
)


def client(state: str, served: float | None = None, *, to_disk: bool = False) -> DhcpClient:
    return DhcpClient(1, "n1", state, MAC, served, None, None, sent_to_disk=to_disk)


def decide(
    state: str | None,
    stage: str = "ipxe",
    *,
    kind: str = "DISCOVER",
    after: float | None = None,
    xid: int = 2,
    mac: str = MAC,
    unknown: str = "discover",
    arch: int | None = 0,
    to_disk: bool = True,
) -> boot.Verdict:
    """`after`: seconds since the boot was served, None when it was not. The last exchange had xid
    1."""
    known = (
        None if state is None else client(state, None if after is None else SERVED, to_disk=to_disk)
    )
    query = DhcpQuery(kind, mac, xid, "lab", stage, arch=16 if stage == "httpclient" else arch)
    return boot.decide(query, known, 1, Policy(unknown=unknown), SERVED + (after or 0))


@pytest.mark.parametrize("stage", PXE)
def test_strangers_that_ask_to_network_boot_are_discovered_if_the_site_wants_it(stage: str) -> None:
    assert decide(None, stage) == boot.Verdict("boot", "a machine never seen before", new=True)
    assert decide(None, stage, unknown="known-only").binding == "none"
    assert decide(None, stage, kind="REQUEST").binding == "none"


@pytest.mark.parametrize("state", [None, "new", "boot", "active", "inactive"])
def test_a_machine_without_a_loader_of_its_own_gets_none_of_anothers(state: str | None) -> None:
    """Also where its NIC's ROM is an iPXE, whose script would load an x86 kernel."""
    known = None if state is None else client(state, SERVED)
    for stage, arch in product(PXE, (6, 10, 11, 15, 18, 19, 20, 27, 99)):
        query = DhcpQuery("DISCOVER", MAC, 2, "lab", stage, arch=arch)
        verdict = boot.decide(query, known, 1, Policy(unknown="discover"), SERVED + 300)
        assert (verdict.binding, verdict.event, verdict.new, verdict.listed) == (
            "none",
            None,
            False,
            True,
        ), (stage, arch)
        assert f"(architecture {arch})" in verdict.why


def test_an_unfit_machine_is_listed_only_where_it_would_have_been_answered() -> None:
    query = DhcpQuery("DISCOVER", MAC, 2, "lab", "firmware", arch=11)
    assert not boot.decide(query, None, 1, Policy(unknown="known-only"), SERVED).listed
    assert not boot.decide(query, client("retired"), 1, Policy(), SERVED).listed


def test_architectures_have_their_names() -> None:
    """IANA's registry, by the numbers that are easily mixed up."""
    for arch, name in (
        (6, "32-bit x86 UEFI"),
        (10, "32-bit ARM"),
        (11, "64-bit ARM"),
        (15, "32-bit x86 UEFI by HTTP"),
        (18, "32-bit ARM UEFI by HTTP"),
        (19, "64-bit ARM UEFI by HTTP"),
        (27, "64-bit RISC-V"),
    ):
        assert name in architecture.refusal(arch)
    assert {None, 0, 7, 9, 16} == architecture.SUPPORTED
    assert "unknown architecture (architecture 99)" in architecture.refusal(99)


def test_foreign_systems_and_retired_machines_meet_silence() -> None:
    assert decide(None, "os").binding == "none"
    assert all(decide("retired", stage).binding == "none" for stage in (*PXE, "os", "trampoline"))


@pytest.mark.parametrize("state", sorted(set(NodeState) - {"retired"}))
def test_the_trampoline_always_has_its_address(state: str) -> None:
    assert decide(state, "trampoline", after=500).binding == "boot"
    assert decide(state, "trampoline").event is None


@pytest.mark.parametrize("state", sorted(NodeState))
def test_systems_are_answered_where_a_vcluster_runs(state: str) -> None:
    assert decide(state, "os").binding == ("vcluster" if state in ("boot", "active") else "none")


@pytest.mark.parametrize(
    ("state", "kind", "after", "cycled", "disk", "event"),
    [
        ("trampoline", "DISCOVER", 31.0, False, "dirty", NodeEvent.TIMED_OUT),
        # the system that is to end may ask once more
        ("trampoline", "DISCOVER", 29.0, False, "dirty", None),
        ("trampoline", "REQUEST", 31.0, False, "dirty", None),
        # it was power-cycled for it: now the deadline counts
        ("trampoline", "DISCOVER", 31.0, True, "dirty", None),
        # no system is on it: firmware of another kind asks
        ("trampoline", "DISCOVER", 31.0, False, "clean", None),
        ("registering", "DISCOVER", 31.0, False, "foreign", None),  # not COD's yet
    ],
)
def test_a_system_that_starts_in_place_of_the_trampoline_is_noticed(
    state: str, kind: str, after: float, cycled: bool, disk: str, event: NodeEvent | None
) -> None:
    machine = replace(client(state), since=SERVED, cycled=cycled, disk=disk)
    verdict = boot.decide(
        DhcpQuery(kind, MAC, 2, "lab", "os"), machine, 1, Policy(), SERVED + after
    )
    assert (verdict.binding, verdict.event) == ("none", event)


@pytest.mark.parametrize("stage", PXE)
@pytest.mark.parametrize("state", ["inactive", "wipe", "prime", "capture"])
def test_a_reset_is_noticed_once(state: str, stage: str) -> None:
    assert decide(state, stage).event is NodeEvent.ASKED
    assert decide(state, stage, xid=1).event is None  # the same exchange, repeated
    assert decide(state, stage, kind="REQUEST").event is None


@pytest.mark.parametrize("state", ["new", "registering", "off", "trampoline", "quarantined"])
def test_where_the_trampoline_is_expected_asking_is_no_news(state: str) -> None:
    verdict = decide(state)
    assert (verdict.binding, verdict.event) == ("boot", None)


@pytest.mark.parametrize(
    ("stage", "after", "xid", "mac", "pool", "event"),
    [
        ("firmware", None, 2, MAC, "boot", None),  # the first stage of this boot
        ("ipxe", None, 2, MAC, "boot", None),  # the second
        ("ipxe", None, 3, MAC, "boot", None),  # the loader's second try
        ("ipxe", 0.5, 1, MAC, "boot", None),  # a duplicate under way
        ("firmware", 1.0, 9, MAC, "boot", None),  # a duplicate of the first stage under way
        ("ipxe", 30.0, 1, MAC, "boot", None),  # a late duplicate
        ("ipxe", 30.0, 2, MAC, "boot", NodeEvent.BOOT_FAILED),  # QEMU's ROM is an iPXE
        ("firmware", 5.0, 2, MAC, "boot", NodeEvent.BOOT_FAILED),
        ("pxelinux", 30.0, 2, MAC, "boot", NodeEvent.BOOT_FAILED),
        (
            "firmware",
            90.0,
            1,
            MAC,
            "boot",
            NodeEvent.BOOT_FAILED,
        ),  # a ROM whose xid is always the same
        ("httpclient", 10.0, 2, MAC, "boot", None),  # UEFI tries HTTP after PXE, before the disk
        ("firmware", 10.0, 2, SECOND, "none", None),  # BIOS tries the next card
        # it boots by HTTP alone, and is back
        ("httpclient", 200.0, 2, MAC, "boot", NodeEvent.BOOT_FAILED),
        ("firmware", 200.0, 2, SECOND, "boot", NodeEvent.BOOT_FAILED),
    ],
)
def test_when_a_boot_has_failed(
    stage: str, after: float | None, xid: int, mac: str, pool: str, event: NodeEvent | None
) -> None:
    verdict = decide("boot", stage, after=after, xid=xid, mac=mac)
    assert (verdict.binding, verdict.event) == (pool, event), verdict.why


@pytest.mark.parametrize("mac", [MAC, SECOND])
@pytest.mark.parametrize(
    ("stage", "arch"), [("firmware", 7), ("firmware", 9), ("ipxe", 7), ("httpclient", 16)]
)
def test_uefi_goes_through_all_its_options_to_the_disk(stage: str, arch: int, mac: str) -> None:
    """A NIC with an iPXE ROM is listed as that, as PXE and as HTTP boot, and each asks by
    itself."""
    query = DhcpQuery("DISCOVER", mac, 2, "lab", stage, arch=arch)
    for state in ("boot", "active"):
        for after in (0.0, 1.0, 10.0, 119.0):
            verdict = decide(state, stage, after=after, arch=arch, mac=mac)
            assert (verdict.binding, verdict.event) == ("boot", None), verdict.why
            name = boot.bootfile(
                query, client(state, SERVED, to_disk=True), SUBNET, SITE, SERVED + after
            )
            assert str(name).endswith(boot.NO_SUCH_FILE)
    late = decide("boot", stage, after=121.0, arch=arch, mac=mac)
    assert late.event is NodeEvent.BOOT_FAILED
    name = boot.bootfile(query, client("boot", SERVED, to_disk=True), SUBNET, SITE, SERVED + 121)
    assert not str(name).endswith(boot.NO_SUCH_FILE)


def test_a_patient_site_gives_firmware_more_time() -> None:
    query = DhcpQuery("DISCOVER", MAC, 2, "lab", "firmware", arch=7)
    known, patient = client("boot", SERVED, to_disk=True), Policy(patience=3.0)
    assert boot.decide(query, known, 1, patient, SERVED + 350).event is None
    assert boot.decide(query, known, 1, patient, SERVED + 370).event is NodeEvent.BOOT_FAILED


def test_a_diskless_system_has_no_next_option() -> None:
    """Nothing leads from its kernel back to the firmware: a machine that asks is back."""
    for stage, arch in (("firmware", 7), ("ipxe", 7), ("httpclient", 16)):
        assert (
            decide("boot", stage, after=10.0, arch=arch, to_disk=False).event
            is NodeEvent.BOOT_FAILED
        )
        query = DhcpQuery("DISCOVER", MAC, 2, "lab", stage, arch=arch)
        name = boot.bootfile(query, client("active", SERVED), SUBNET, SITE, SERVED + 9)
        assert not str(name).endswith(boot.NO_SUCH_FILE)


def test_an_active_node_that_asks_boots_again() -> None:
    for after in (None, 0.5, 30.0, 1e6):
        verdict = decide("active", after=after)
        assert (verdict.binding, verdict.event) == ("boot", None)
    assert decide("active", "httpclient", after=10.0).event is None


@pytest.mark.parametrize("state", sorted(NodeState))
def test_every_event_that_is_told_has_an_arrow(state: str) -> None:
    for stage in (*PXE, "os", "trampoline"):
        for after in (None, 0.5, 30.0, 500.0):
            event = decide(state, stage, after=after).event
            assert event is None or (NodeState(state), event) in NODE_TRANSITIONS


# ---------------------------------------------------------------- loaders and scripts


@pytest.mark.parametrize(
    ("stage", "arch", "name"),
    [
        ("firmware", 0, "undionly.kpxe"),
        ("firmware", None, "undionly.kpxe"),
        ("firmware", 7, "snponly.efi"),
        ("firmware", 9, "snponly.efi"),
        ("httpclient", 16, "http://10.77.0.1:8069/files/snponly.efi"),
        ("ipxe", 0, f"http://10.77.0.1:8069/boot/{MAC}/script.ipxe"),
        ("ipxe", 7, f"http://10.77.0.1:8069/boot/{MAC}/script.ipxe"),
        ("pxelinux", 0, None),
        ("trampoline", None, None),
        ("os", None, None),
    ],
)
def test_the_next_thing_to_load_is_never_the_last_one(
    stage: str, arch: int | None, name: str | None
) -> None:
    query = DhcpQuery("DISCOVER", MAC, 1, "lab", stage, arch=arch)
    assert boot.bootfile(query, None, SUBNET, SITE, SERVED) == name


def test_what_each_state_boots() -> None:
    for state in NodeState:
        action = boot.plan(state, LOCAL, {}, MAC, SUBNET, SITE).action
        expected = {"boot": "local", "active": "local", "retired": "none"}.get(state, "trampoline")
        assert action == expected, state


def test_the_trampoline_finds_its_server_and_carries_no_secret() -> None:
    plan = boot.plan("inactive", None, {}, MAC, SUBNET, SITE)
    assert plan.kernel == "http://10.77.0.1:8069/files/trampoline/vmlinuz"
    assert plan.initrds == (
        "http://10.77.0.1:8069/files/trampoline/ramdisk",
        f"http://10.77.0.1:8069/boot/{MAC}/secret.cpio",
    )
    assert (
        plan.cmdline == f"cod.confd=10.77.0.1:8070 cod.mac={MAC} quiet panic=10 cryptomgr.notests "
        "console=ttyS0,115200"
    )


def test_what_boots_knows_the_other_servers() -> None:
    subnet = replace(SUBNET, others=("10.77.0.2",))
    plan = boot.plan("inactive", None, {}, MAC, subnet, SITE)
    assert plan.cmdline.split()[0] == "cod.confd=10.77.0.1:8070,10.77.0.2:8070"
    assert plan.scripts == (f"http://10.77.0.2:8069/boot/{MAC}/script.ipxe",)


@pytest.mark.parametrize("same_wwn", ["paths", "disks"])
def test_the_trampoline_is_told_which_disks_are_local(same_wwn: str) -> None:
    site = replace(SITE, policy=replace(SITE.policy, same_wwn=same_wwn))
    words = boot.plan("inactive", None, {}, MAC, SUBNET, site).cmdline.split()
    assert f"cod.same_wwn={same_wwn}" in words


def test_a_diskless_system_can_be_told_where_its_metadata_is() -> None:
    template = parse(
        '<template><boot mode="diskless"><kernel url="http://h/k"/>'
        "<cmdline>quiet ds=nocloud-net;s={metadata}nocloud/</cmdline></boot></template>"
    )
    plan = boot.plan("boot", template, {}, MAC, SUBNET, SITE)
    assert plan.cmdline == "quiet ds=nocloud-net;s=http://10.77.0.1:8069/nocloud/"


def test_a_diskless_node_boots_its_templates_kernel() -> None:
    image = Image(1, "k", None, "ready", "raw", 1, 1, 1, "", "d" * 64, 0.0, "", "file")
    plan = boot.plan("active", DISKLESS, {"k": image}, MAC, SUBNET, SITE)
    assert (plan.action, plan.kernel, plan.initrds, plan.cmdline) == (
        "kernel",
        f"http://10.77.0.1:8069/images/{'d' * 64}/file",
        ("http://h/r",),
        "quiet",
    )


def test_what_cannot_be_booted_says_why() -> None:
    assert "no image" in boot.plan("active", DISKLESS, {}, MAC, SUBNET, SITE).why
    assert "without a template" in boot.plan("boot", None, {}, MAC, SUBNET, SITE).why
