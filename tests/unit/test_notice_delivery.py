"""What groups are told, where it may be sent, which deliveries go now and when a failed one goes
again."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod import notice_texts as notices
from cod.model import MaintenanceWindow, NoticeRules, Refused, Vcluster
from cod.policy import notice_delivery
from cod.policy.notice_delivery import AT_ONCE, GIVEN_UP, LONGEST_PAUSE, OF_ONE_HOST, Target

WEB = Vcluster(
    id=7,
    name="web",
    group_id=3,
    state="active",
    template_id=1,
    size=4,
    creation_size=2,
    attributes="",
    subnet="lab",
    lease_time=86400.0,
    expires_at=1_000_000_000.0,
    drain_until=1_000_000_300.0,
    warned=None,
    ready_at=None,
    created_at=0.0,
    ended_at=None,
)


POWER = MaintenanceWindow(
    1, "planned", 1e9, None, "a new power feed", "@r12", "", False, False, 1, None, 0.0, "user:root"
)


def every_news() -> list[notices.NoticeText]:
    long = "n" * 63
    return [
        notices.lease_began(WEB),
        notices.vcluster_ready(WEB, 4),
        notices.lease_warning(WEB, 3600.0),
        notices.extended(WEB),
        notices.renamed(WEB, "shop"),
        notices.lease_ended(WEB),
        notices.drained(WEB),
        notices.maintenance(WEB, ["web-1"], POWER),
        notices.maintenance_began(WEB, ["web-1"], POWER),
        notices.maintenance_moved(WEB, ["web-1"], POWER),
        notices.maintenance_cancelled(WEB, ["web-1"], POWER),
        notices.maintenance_in_the_way(WEB, POWER),
        notices.deleted(WEB, "user:ann"),
        notices.reclaim(WEB, ["web-1"], 2, 1e9),
        notices.reclaim_dropped(WEB, 1),
        notices.reclaimed(WEB, ["web-1", "web-2"]),
        notices.request_rejected(WEB, 9, "no such node"),
        notices.move(WEB, ["web-1"], "batch", "user:ann", 1e9),
        notices.moved(WEB, ["web-1"]),
        notices.reservation_late(WEB, 9, 1e9, begun=False),
        notices.series_refused("course", "course-2026-12-07", 1e9, "4 of 8 nodes are not free"),
        notices.series_reserved("course", "course-2026-12-07", 1e9),
        notices.node_hours("physics", 80, 81.0, 100.0, 1e9),
        notices.budget("physics", 80, 81.0, 100.0, "EUR", 1e9),
        notices.guarantees_exceed("nodes", {"physics": 8}, 6),
        notices.guarantees_met(),
        notices.request_decided(WEB, 9, "granted", ""),
        notices.reinstalled(WEB),
        notices.reinstall_stopped(WEB, "node7", "its disk cannot be written", 3),
        notices.lease_began(replace(WEB, creation_size=0)),
        notices.lease_began(WEB, cut=True),
        notices.node_lost(WEB, "n7", "its fan is loud"),
        notices.request_stopped(WEB, 9, "2 different nodes have failed"),
        notices.switch_away("leaf", ["n7"], "no answer"),
        notices.switch_back("leaf"),
        notices.power_control_away(["n7 (ipmi 10.9.0.7)"]),
        notices.power_control_back(),
        notices.directory_held(["ann", "bob"], 3),
        notices.directory_normal(),
        notices.secondary_late("192.0.2.53@cod1", "it does not answer"),
        notices.secondary_follows("192.0.2.53@cod1"),
        notices.images_not_served(["n7"], "the image server answered 503"),
        notices.images_served(),
        notices.keytabs_not_made(["n7"], "the KDC does not answer"),
        notices.keytabs_made(),
        notices.hardware_changed("n7", "t1", "t2", "web", "memory"),
        notices.quarantined(long, "it broke"),
        notices.site_held("the database was restored"),
        notices.port_given_up("leaf", "p1", "n7", 20, "no such port"),
        notices.captured("n7", long, "mine@2"),
        notices.capture_failed("n7", long, "no room"),
        notices.test("physics", "token:ci"),
        notices.vcm_certificate(WEB, 1e9, 1e9 - 9 * 86400, inside=False),
        notices.authority_ends(1e9),
        notices.new_machines_refused(
            "lab", "new machines on subnet lab are refused: too many asked"
        ),
        notices.volume_deleted("physics/data", 1e9, "user:ann deleted it"),
        notices.volume_erased("physics/data"),
        notices.volume_trouble_over("physics/data", "nas"),
        notices.volume_trouble("physics/data", "nas", "file server nas does not answer: timed out"),
        notices.not_believed("n7", "its power driver says that it is off"),
        notices.asked_elsewhere("n7", "it asked behind relay 10.0.0.1"),
        notices.other_dhcp_server("n7", "the system of n7 takes the address 10.0.0.9 of another"),
        notices.namesakes("n7", "label root is on sdb (serial X), too."),
        notices.found_off("n7"),
        notices.found_on("n7"),
        notices.cannot_boot("52:54:00:00:00:01 is of an architecture without a loader"),
    ]


# ---------------------------------------------------------------- texts


def test_every_kind_is_told_by_somebody_and_fits_its_column() -> None:
    assert {each["kind"] for each in every_news()} == set(notices.KINDS)
    assert all(len(each["kind"]) <= 16 for each in every_news())


@pytest.mark.parametrize("news", every_news(), ids=lambda news: str(news["kind"]))
def test_a_text_is_one_line_and_sentences(news: notices.NoticeText) -> None:
    assert 0 < len(news["subject"]) <= notices.LONGEST_SUBJECT
    assert news["subject"].isprintable()
    assert news["about"][0].isupper()
    assert news["about"].endswith(".")
    assert ".." not in news["about"]
    assert "None" not in news["about"]
    assert not re.search(r"`|\bcod [a-z]", news["about"]), (
        "a link to the form takes the place of a command"
    )
    assert len(news["link"]) <= 300


def test_the_link_to_a_groups_image_has_no_encoded_slash_which_proxies_refuse() -> None:
    assert notices.captured("n7", "physics/mine", "")["link"] == "/images/physics/mine"
    assert notices.captured("n7", "mine", "")["link"] == "/images/mine"


def test_a_notice_leads_to_the_form_that_helps() -> None:
    links = {each["kind"]: each["link"] for each in every_news()}
    assert links["lease-warning"] == links["lease-ended"] == "/vclusters/web#extend"
    assert (links["reclaim"], links["reclaimed"]) == (
        "/vclusters/web#reclaims",
        "/vclusters/web#resize",
    )
    assert (links["move"], links["moved"]) == ("/vclusters/web#reclaims", "/vclusters/web#resize")
    assert (links["rejected"], links["quarantined"]) == ("/requests/9", f"/nodes/{'n' * 63}")
    assert {kind for kind, link in links.items() if link} == {
        kind for kind, each in notices.KINDS.items() if each.remedy
    }


@pytest.mark.parametrize(
    ("news", "words"),
    [
        (
            notices.lease_warning(WEB, 3600.0),
            ["in 1 h", "2001-09-09 01:46 UTC", "Extend the lease to keep the nodes"],
        ),
        (
            notices.lease_ended(WEB),
            ["until 2001-09-09 01:51 UTC", "or extend the lease before then"],
        ),
        (notices.extended(WEB), ["now ends 2001-09-09 01:46 UTC"]),
        (
            notices.reclaim(WEB, ["web-1", "web-2"], 2, 1e9),
            ["2 nodes", "COD takes these: web-1, web-2.", "by 2001-09-09 01:46 UTC"],
        ),
        (
            notices.reclaimed(WEB, ["web-1"]),
            ["left cluster web: web-1.", "higher priority needed", "now has 4 nodes"],
        ),
        (
            notices.move(WEB, ["web-1"], "batch", "user:ann", 1e9),
            [
                "gives 1 node to cluster batch, as user:ann decided.",
                "by 2001-09-09 01:46 UTC",
                "takes these: web-1.",
            ],
        ),
        (notices.move(WEB, ["web-1"], "", "user:ann", 1e9), ["to a cluster of another group,"]),
        (notices.moved(WEB, ["web-1"]), ["left cluster web: web-1.", "now has 4 nodes"]),
        (
            notices.reservation_late(WEB, 9, 1e9, begun=False),
            ["begins late", "from 2001-09-09 01:46 UTC on", "Too few"],
        ),
        (
            notices.reservation_late(WEB, 9, 1e9, begun=True),
            ["began late", "have been granted now"],
        ),
        (notices.request_rejected(WEB, 9, "no type has 9 disks"), ["no type has 9 disks."]),
        (
            notices.hardware_changed("n7", "t1", "t2", None),
            ["of type t1 and is of type t2", "its last report"],
        ),
        (notices.quarantined("n7", "it broke!"), ["it broke! It", "returns it to service"]),
        (notices.deleted(WEB, "user:ann"), ["deleted by user:ann"]),
        (notices.vcluster_ready(WEB, 1), ["1 node run"]),
        (
            notices.vcm_certificate(WEB, 1e9, 1e9 - 9 * 86400, inside=False),
            ["ends in 9 d", "ends 2001-09-09 01:46 UTC", "read its log", "Enroll the VCM again"],
        ),
        (
            notices.vcm_certificate(WEB, 1e9, 1e9, inside=True),
            [
                "certificate has ended",
                "can no longer connect",
                "Enroll the VCM again, and have its node installed again",
            ],
        ),
        (
            notices.authority_ends(1e9),
            ["ends 2001-09-09 01:46 UTC", "Restart each server of the site soon"],
        ),
    ],
)
def test_a_text_says_what_to_do(news: notices.NoticeText, words: list[str]) -> None:
    text = f"{news['subject']}\n{news['about']}"
    assert [word for word in words if word not in text] == []


def test_a_reclaim_without_chosen_nodes_names_none() -> None:
    assert "are taken:" not in notices.reclaim(WEB, [], 2, 1e9)["about"]
    assert "held by" not in notices.hardware_changed("n7", "t1", "t2", None)["about"]
    assert "does not fit" not in notices.hardware_changed("n7", "t1", "t2", "web")["about"]


def test_many_nodes_are_counted_not_listed() -> None:
    about = notices.reclaimed(WEB, [f"web-{n}" for n in range(25)])["about"]
    assert "web-19 and 5 more" in about
    assert "web-20" not in about


# ---------------------------------------------------------------- where to


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("  ", ()),
        ("ann@example.org", ("ann@example.org",)),
        ("a@b , c.d+x@e-f.org", ("a@b", "c.d+x@e-f.org")),
        ("O'Neil@x.org", ("O'Neil@x.org",)),
        ("a" * 64 + "@x.org", ("a" * 64 + "@x.org",)),
    ],
)
def test_addresses(text: str, found: tuple[str, ...]) -> None:
    assert notice_delivery.addresses(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "ann",
        "@x.org",
        "ann@",
        "a b@x.org",
        "a@x.org,",
        "a@x..org",
        ".a@x.org",
        "a.@x.org",
        "a@-x.org",
        "a@x.org\n",
        "a@x.org\nBcc: b@y.org",
        "a@x.org\r\n",
        "<a@x.org>",
        "Ann <a@x.org>",
        '"a b"@x.org',
        "ä@x.org",
        "a@ä.org",
        "a@[10.0.0.1]",
        "a" * 65 + "@x.org",
        "a@" + "x" * 64 + ".org",
        "a@" + "x." * 126 + "org",
        "a@b@c.org",
        "a@x.org;b@y",
        "a@x.org\x00",
        "a\t@x.org",
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="should be an e-mail address"):
        notice_delivery.addresses(text)


def test_not_too_many_addresses() -> None:
    with pytest.raises(ValueError, match="at most 20"):
        notice_delivery.addresses(", ".join(f"a{n}@x.org" for n in range(21)))


@given(st.text(max_size=40))
def test_no_address_can_end_a_header_line(text: str) -> None:
    try:
        found = notice_delivery.addresses(text)
    except ValueError:
        return
    assert all(
        each.isascii() and each.isprintable() and " " not in each and "," not in each
        for each in found
    )


def test_a_groups_addresses_are_kept_tidy() -> None:
    assert notice_delivery.check_email(" a@x.org,b@y.org ") == "a@x.org, b@y.org"
    with pytest.raises(Refused) as caught:
        notice_delivery.check_email("nonsense")
    assert (caught.value.code, caught.value.field) == ("invalid", "email")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "https://hooks.example.org/x?y=1",
        "http://10.0.0.9:8080/",
        "https://[2001:db8::1]/x",
        "http://chat/x#y",
        "https://hooks.example.org./x",
    ],
)
def test_good_webhooks(url: str) -> None:
    assert notice_delivery.check_webhook(url, NoticeRules()) == url


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://x.org/", "begins with https"),
        ("x.org/hook", "begins with https"),
        ("https://", "begins with https"),
        ("http:///x", "begins with https"),
        ("https://u:p@x.org/", "no user or password"),
        ("https://u@x.org/", "no user or password"),
        ("https://x.org/a b", "plain ASCII"),
        ("https://x.org/\r\nHost: y", "plain ASCII"),
        ("https://ä.org/", "plain ASCII"),
        ("https://x.org:99999/", "no URL"),
        ("https://x.org:0/", "port 0"),
        ("https://[::1/", "no URL"),
        ("https://" + "x" * 2000, "at most 2000"),
        ("https://x_y!.org/", "no host name"),
        ("file:///etc/passwd", "begins with https"),
        ("http://127.0.0.1/", "may not be at 127.0.0.1"),
        ("http://[::1]/", "may not be at ::1"),
        ("http://169.254.169.254/latest", "may not be at 169.254"),
        ("http://0.0.0.0/", "may not be at 0.0.0.0"),
        ("http://[::ffff:127.0.0.1]/", "may not be at"),
    ],
)
def test_bad_webhooks(url: str, words: str) -> None:
    with pytest.raises(Refused, match=words) as caught:
        notice_delivery.check_webhook(url, NoticeRules())
    assert (caught.value.code, caught.value.field) == ("invalid", "webhook")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.9.1",
        "::1",
        "169.254.169.254",
        "fe80::1",
        "fe80::1%eth0",
        "0.1.2.3",
        "240.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.1.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "10.77.0.1",
        "::ffff:10.77.0.1",
    ],
)
def test_the_server_itself_is_out_of_reach_unless_the_site_says_so(address: str) -> None:
    assert not notice_delivery.may_reach(address, False, ["10.77.0.1"])
    assert notice_delivery.may_reach(address, True, ["10.77.0.1"])


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "::ffff:224.0.0.1"])
def test_what_is_no_host_is_never_reached(address: str) -> None:
    assert not notice_delivery.may_reach(address, False)
    assert not notice_delivery.may_reach(address, True)


@pytest.mark.parametrize(
    "address", ["10.0.0.9", "192.168.1.1", "8.8.8.8", "2001:db8::1", "fd00::1", "64:ff9b::a00:9"]
)
def test_others_are_reached(address: str) -> None:
    assert notice_delivery.may_reach(address, False, ["10.77.0.1"])


@pytest.mark.parametrize(
    ("address", "reached"),
    [
        ("10.9.0.1", False),
        ("10.10.0.1", True),
        ("::ffff:10.9.3.4", False),
        ("64:ff9b::a09:1", False),
        ("fd00::1", False),
        ("2001:db8::1", True),
    ],
)
def test_closed_networks_are_closed_whatever_else_is_open(address: str, reached: bool) -> None:
    closed = ("10.9.0.0/16", "fd00::/8")
    assert notice_delivery.may_reach(address, False, (), closed) == reached
    assert notice_delivery.may_reach(address, True, (), closed) == reached
    rules = NoticeRules(local_webhooks=True, closed_networks=closed)
    url = f"http://[{address}]/" if ":" in address else f"http://{address}/"
    if reached:
        assert notice_delivery.check_webhook(url, rules) == url
    else:
        with pytest.raises(Refused, match="closed to webhooks"):
            notice_delivery.check_webhook(url, rules)


@given(st.ip_addresses(v=4, network="127.0.0.0/8"))
def test_no_spelling_of_loopback_is_reached(address: ipaddress.IPv4Address) -> None:
    for spelt in (
        f"{address}",
        f"::ffff:{address}",
        f"64:ff9b::{address}",
        f"2002:{int(address) >> 16:x}:{int(address) & 0xFFFF:x}::1",
    ):
        assert not notice_delivery.may_reach(spelt, False)


# ---------------------------------------------------------------- which and when


def hook(host: str, path: int = 0) -> Target:
    return "webhook", f"https://{host}/{path}"


def test_one_at_a_time_to_a_target() -> None:
    assert notice_delivery.pick([hook("a"), hook("b"), hook("a")], [hook("b")]) == [hook("a")]


def test_a_host_is_not_given_all_the_room() -> None:
    due = [hook("dead", n) for n in range(50)] + [hook("good")]
    picked = notice_delivery.pick(due, [hook("dead", 99)])
    assert len([each for each in picked if "dead" in each[1]]) == OF_ONE_HOST - 1
    assert hook("good") in picked


def test_mail_goes_through_one_server() -> None:
    due = [("email", f"a{n}@x.org") for n in range(9)]
    assert notice_delivery.pick(due, []) == due[:OF_ONE_HOST]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9))),
    st.sets(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=4),
)
def test_the_limits_hold_whatever_is_due(
    due: list[tuple[int, int]], running: set[tuple[int, int]]
) -> None:
    wanted, busy = [hook(f"h{h}", p) for h, p in due], [hook(f"h{h}", p) for h, p in running]
    picked = notice_delivery.pick(wanted, busy)
    together = picked + busy
    assert len(set(together)) == len(together) <= AT_ONCE
    for h in range(21):
        of_host = [each for each in together if notice_delivery.host(each) == f"h{h}"]
        assert len(of_host) <= max(OF_ONE_HOST, sum(host == h for host, _ in running))
    left = [each for each in wanted if each not in together]
    full = len(together) >= AT_ONCE
    assert all(
        full
        or sum(notice_delivery.host(o) == notice_delivery.host(each) for o in together)
        >= OF_ONE_HOST
        for each in left
    )


def test_what_was_due_longest_goes_first() -> None:
    due = [hook(f"h{n}") for n in range(AT_ONCE + 5)]
    assert notice_delivery.pick(due, []) == due[:AT_ONCE]


def test_the_host_of_a_broken_url() -> None:
    assert notice_delivery.host(("webhook", "https://[::1/")) == "?"


def test_pauses_double_up_to_an_hour_and_end_after_a_day() -> None:
    assert [notice_delivery.retry_after(n, 0.0) for n in (1, 2, 3, 4)] == [2.0, 4.0, 8.0, 16.0]
    assert notice_delivery.retry_after(12, 10_000.0) == LONGEST_PAUSE
    assert notice_delivery.retry_after(10**9, GIVEN_UP - 1) == LONGEST_PAUSE
    assert notice_delivery.retry_after(1, GIVEN_UP) is None
    assert notice_delivery.retry_after(1, -100.0) == 2.0  # the clock was set back


@given(st.integers(1, 10**6), st.floats(0, GIVEN_UP, exclude_max=True))
def test_a_pause_is_never_long_nor_none_before_a_day_is_over(attempts: int, age: float) -> None:
    pause = notice_delivery.retry_after(attempts, age)
    assert pause is not None
    assert 2.0 <= pause <= LONGEST_PAUSE
