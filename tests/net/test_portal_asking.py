"""The portal's pages that ask for nodes, those about requests and about notices."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import pytest
from sqlalchemy import update

from cod.core import requests as core_requests
from cod.store import tables as t
from cod.store.scheduler import requests
from cod.web.portal.formatting import typed
from tests.net.apiserver import NOW, Served
from tests.net.ownersite import asked, browse, engine, furnished_sqlite, there, vcluster
from tests.net.portalclient import Shown, signed_in

pytestmark = pytest.mark.slow

NEW, SENT, CHECK = "/vclusters/new", "/vclusters", "/vclusters/check"
ASK, MORE = "/vclusters/batch/ask", "/vclusters/batch/requests"


def test_a_new_vcluster(there: Served) -> None:
    page = browse(there).get(NEW)
    assert "A Grid Engine execution host that joins by name." in page.words
    assert "web-server" not in page.words, "a template of another group"
    done = page.send(
        SENT, name="fresh", template="debian", size=2, lease="3d", memory="128 GiB", cpus="32"
    )
    assert "fresh is requested" in done.words
    made = vcluster(there, "fresh")
    assert (made.size, made.lease_time, made.state) == (2, 3 * 86400, "pending")
    assert (
        made.attributes == '<requires><memory><mib min="128 GiB"/></memory><cpu><count'
        ' min="32"/></cpu></requires>'
    )


def test_what_is_wrong_is_at_its_field_and_what_was_typed_stays(there: Served) -> None:
    page = (
        browse(there)
        .get(NEW)
        .send(SENT, name="Not A Label", size="many", lease="soon", memory="16 GiB")
    )
    assert page.status == 422
    fields = dict(page.fields(SENT))
    assert (fields["name"], fields["size"], fields["lease"], fields["memory"]) == (
        "Not A Label",
        "many",
        "soon",
        "16 GiB",
    )
    wrong = {each.get("name") for each in page.tree.xpath("//*[@aria-invalid]")}
    assert wrong == {"name", "size", "lease"}, "all at once"
    page = page.send(SENT, lease="3d")
    wrong = {each.get("name") for each in page.tree.xpath("//*[@aria-invalid]")}
    assert wrong == {"name", "size"}
    assert "Choose one" in page.words
    taken = page.send(SENT, name="batch", size=1, template="debian")
    assert "the name 'batch' is not free" in taken.words


def test_xml_beside_choices_keeps_its_lines(there: Served) -> None:
    page = (
        browse(there)
        .get(NEW)
        .send(
            SENT,
            name="fresh",
            template="debian",
            size=1,
            memory="16 GiB",
            xml="<requires>\n\n  <flavour/>\n</requires>",
        )
    )
    assert page.status == 422
    assert "line 3" in page.words
    assert "flavour" in page.words


def test_what_would_come_of_it_without_the_script(there: Served) -> None:
    page = browse(there).get(NEW).send(SENT, name="x", size=2)
    looked = page.browser.post(
        CHECK, page.filled(SENT, name="kept", template="debian", size=4, memory="1024 GiB")
    )
    assert looked.status == 200
    assert "3 of 33 nodes match" in looked.words
    assert "large memory/mib: at least 1024 GiB wanted" in looked.words
    assert ("name", "kept") in looked.fields(SENT)
    assert vcluster(there, "kept") is None
    part = page.browser.post(CHECK + "?part=match", page.filled(SENT, template="debian", size=1))
    assert "<html" not in part.text
    assert "match" in part.text


def test_the_check_says_what_cannot_be_read(there: Served) -> None:
    page = browse(there).get(NEW)
    part = page.browser.post(CHECK + "?part=match", page.filled(SENT, size="lots"))
    assert part.status == 422
    assert "whole number" in part.text


def test_more_nodes_of_two_kinds(there: Served) -> None:
    page = browse(there).get(ASK, kinds=2)
    done = page.send(
        MORE,
        tuples__0__count=1,
        tuples__0__memory="128 GiB",
        tuples__1__count=2,
        tuples__1__template="debian",
    )
    assert "The nodes are requested." in done.words, done.words
    first, second = asked(there, "batch")[0].tuples
    assert (first.count, "128 GiB" in first.attributes, second.count, second.attributes) == (
        1,
        True,
        2,
        "",
    )
    assert second.template_id == 1


def test_a_cluster_is_reserved_in_advance(there: Served) -> None:
    page = browse(there).get(f"{NEW}?template=debian")
    asked_for = {"name": "course", "size": 1, "template": "debian"}
    day = NOW + 86400
    refused = page.send("/vclusters", **asked_for, ends_at=typed(day))
    assert "an end belongs to a start" in refused.words
    done = refused.send("/vclusters", **asked_for, starts_at=typed(day), ends_at=typed(day + 36000))
    assert "course is reserved. Its nodes come at the start." in done.words, done.words
    assert "1 reserved from 1970-01-13 13:46:00 UTC for 10 h" in done.words
    (one,) = asked(there, "course")
    assert (one.kind, one.starts_at, one.duration) == ("create", day // 60 * 60, 36000.0)


def test_nodes_are_reserved_in_advance(there: Served) -> None:
    page = browse(there).get(ASK)
    refused = page.send(MORE, tuples__0__count=1, starts_at=typed(NOW + 86400))
    assert refused.status in (409, 422)
    assert "has a start and a duration" in refused.words
    assert ("starts_at", typed(NOW + 86400)) in refused.fields(MORE), (
        "nothing that was typed is lost"
    )
    odd = (
        browse(there, name="olga")
        .get(ASK)
        .send(MORE, tuples__0__count=1, starts_at="tomorrow", duration="8h")
    )
    assert "should be a date and a time" in odd.words
    done = refused.send(MORE, tuples__0__count=1, starts_at=typed(NOW + 86400), duration="8h")
    assert "The nodes are reserved." in done.words, done.words
    one = asked(there, "batch")[0]
    assert (one.starts_at, one.duration) == ((NOW + 86400) // 60 * 60, 8 * 3600.0)
    assert "1 more reserved from 1970-01-13 13:46:00 UTC for 8 h" in done.words
    assert (
        "Reserved in advance from 1970-01-13 13:46:00 UTC for 8 h."
        in browse(there).get(f"/requests/{one.id}").words
    )
    flexible = (
        browse(there)
        .get(ASK)
        .send(MORE, tuples__0__count=1, before=typed(NOW + 90000), duration="2h")
    )
    assert "The nodes are reserved." in flexible.words, flexible.words
    assert asked(there, "batch")[0].starts_at == NOW + 1
    again = browse(there).get(ASK, request=one.id)
    assert {("starts_at", typed(NOW + 86400)), ("duration", "8 h")} <= set(again.fields(MORE)), (
        "a changed request"
    )


def test_a_kind_without_a_number_is_none(there: Served) -> None:
    page = browse(there).get(ASK, kinds=2)
    page.send(MORE, tuples__0__count=1)
    assert [one.count for one in asked(there, "batch")[0].tuples] == [1]
    wrong = (
        browse(there, name="olga")
        .get(ASK)
        .send(MORE, tuples__0__count="x", tuples__0__memory="16 GiB")
    )
    assert wrong.status == 422
    assert ("tuples.0.memory", "16 GiB") in wrong.fields(MORE)


def test_who_only_looks_cannot_ask(there: Served) -> None:
    browser = browse(there, "viewer")
    assert browser.get(ASK).status == 403
    assert "You may not request nodes" in browser.get(NEW).words


def checked(there: Served, **typed: object) -> Shown:
    page = browse(there, name=f"c{len(typed)}{typed.get('size')}").get(NEW)
    return page.browser.post(CHECK + "?part=match", page.filled(SENT, template="debian", **typed))


def test_the_check_takes_name_and_lease_into_account(there: Served) -> None:
    there.tx(lambda tx: tx.execute(update(t.groups).values(max_lease=86400.0)))
    part = checked(there, name="batch", size=1, lease="3 days")
    assert part.status == 200
    assert "The name 'batch' is not free: choose another." in part.words
    assert "A lease of group physics lasts 1 d at most" in part.words
    fine = checked(there, name="fresh", size=1, lease="1 day").words
    assert "already" not in fine
    assert "at most" not in fine
    assert "length of time" in checked(there, name="fresh", size=2, lease="soon").words


def test_more_nodes_than_the_site_has_are_not_possible(there: Served) -> None:
    part = checked(there, name="fresh", size=500)
    assert "Not possible: the site has 33 nodes, 500 are wanted." in part.words


def test_an_impossible_request_offers_what_would_help(there: Served) -> None:
    page = browse(there).get(NEW)
    typed = page.filled(SENT, name="fresh", template="debian", size=500)
    looked = page.browser.post(CHECK, typed)
    offers = dict(
        zip(
            looked.tree.xpath("//button[@name='remedy']/text()"),
            looked.tree.xpath("//button[@name='remedy']/@value"),
            strict=True,
        )
    )
    assert list(offers) == ["Take 33 nodes of several types and blocks", "Take 12 nodes"]
    for value, fields in (
        (offers["Take 12 nodes"], ("12", None)),
        (next(iter(offers.values())), ("33", "true")),
    ):
        helped = page.browser.post(CHECK, [*typed, ("remedy", value)])
        assert "Not possible" not in helped.words
        kept = dict(helped.fields(SENT))
        assert (kept["size"], kept.get("spread"), kept["name"]) == (*fields, "fresh")


def test_an_impossible_request_is_not_sent(there: Served) -> None:
    page = browse(there).get(NEW).send(SENT, name="fresh", template="debian", size=500)
    assert page.status == 422
    assert (
        "the site has 33 matching. Possible: 33 nodes of several types and blocks or" in page.words
    )
    assert dict(page.fields(SENT))["size"] == "500"
    assert page.tree.xpath("//button[@name='remedy']/@value") == ["33 spread", "12"]
    assert vcluster(there, "fresh") is None


def test_a_waiting_request_offers_what_is_available_now(there: Served) -> None:
    browser = browse(there)
    browser.get("/vclusters/batch").send("/vclusters/batch/resize", size=18)
    request = asked(there, "batch")[0]
    page = browser.get(f"/requests/{request.id}")
    assert page.tree.xpath("//form[contains(@action, '/resize')]//button/text()") == [
        "Allow several types and blocks",
        "Take 4 nodes",
    ]
    (fields,) = [
        form.form_values() for form in page.tree.forms if "Take 4 nodes" in form.text_content()
    ]
    has = vcluster(there, "batch").size
    sized = t.vclusters.update().where(t.vclusters.c.name == "batch")
    there.tx(lambda tx: tx.execute(sized.values(size=has + 10)))  # it was granted meanwhile
    assert "look again" in browser.post("/vclusters/batch/resize", fields).words
    there.tx(lambda tx: tx.execute(sized.values(size=has)))
    browser.post("/vclusters/batch/resize", fields)
    now, before, *_ = asked(there, "batch")
    assert (now.tuples[0].count, now.state) == (4, "pending")
    assert (before.id, before.state) == (request.id, "withdrawn")


def test_a_cluster_that_waits_for_its_first_nodes_can_begin_with_fewer(there: Served) -> None:
    browser = browse(there)
    browser.get(NEW).send(SENT, name="fresh", template="debian", size=12)
    request = asked(there, "fresh")[0]
    page = browser.get(f"/requests/{request.id}")
    action = f"/requests/{request.id}/change"
    offers = page.tree.xpath(f"//form[@action='{action}']//button/text()")
    assert offers == ["Take 4 nodes"]
    (fields,) = [
        form.form_values() for form in page.tree.forms if "Take 4 nodes" in form.text_content()
    ]
    shown = browser.post(action, fields)
    assert "The request is changed. It keeps its place in the queue." in shown.words
    now, before = asked(there, "fresh")
    assert (before.state, before.reason) == ("withdrawn", "it was changed")
    assert (now.kind, now.state, now.may_spread) == ("create", "pending", False)
    assert (now.tuples[0].count, now.submitted_at) == (4, before.submitted_at)
    changed = vcluster(there, "fresh")
    assert (changed.state, changed.size, changed.creation_size) == ("pending", 4, 4)


def test_a_cluster_that_waits_for_more_than_the_site_has_can_begin_with_what_it_has(
    there: Served,
) -> None:
    browser = browse(there)
    browser.get(NEW).send(SENT, name="fresh", template="debian", size=12)
    request = asked(there, "fresh")[0]
    more = update(t.request_tuples).where(t.request_tuples.c.request_id == request.id)
    # nothing is free, and machines of which nothing is known yet may be what is missing
    busy = update(t.nodes).where(t.nodes.c.state.in_(["inactive", "off"]))
    there.tx(lambda tx: tx.execute(more.values(count=500)))
    there.tx(lambda tx: tx.execute(busy.values(state="trampoline")))
    page = browser.get(f"/requests/{request.id}")
    assert "Possible later" in page.words
    most, _ = page.tree.xpath(f"//form[@action='/requests/{request.id}/change']//button/text()")
    assert most == "Take 33 nodes of several types and blocks"


def test_a_rejected_request_can_be_changed_and_sent_again(there: Served) -> None:
    browser = browse(there)
    browser.get(NEW).send(
        SENT, name="fresh", template="debian", size=12, lease="36h", memory="16 GiB", wait=None
    )
    request = asked(there, "fresh")[0]
    there.tx(  # its block had more nodes when it was asked for
        lambda tx: tx.execute(
            update(t.request_tuples)
            .where(t.request_tuples.c.request_id == request.id)
            .values(count=20)
        )
    )
    there.tx(
        core_requests.reject,
        request.id,
        "20 nodes wanted in one block, the largest that matches has 12.",
        NOW,
    )
    assert vcluster(there, "fresh") is None, "it has ended"
    page = browser.get(f"/requests/{request.id}")
    ways = dict(
        zip(
            page.tree.xpath("//p[@class='actions']/a/text()"),
            page.tree.xpath("//p[@class='actions']/a/@href"),
            strict=True,
        )
    )
    assert list(ways) == [
        "Allow several types and blocks",
        "Take 12 nodes",
        "Change and send again",
    ]
    again = browser.get(ways["Take 12 nodes"])
    fields = dict(again.fields(SENT))
    assert {
        name: fields.get(name)
        for name in ("name", "group", "template", "size", "lease", "spread", "wait")
    } == {
        "name": "fresh",
        "group": "physics",
        "template": "debian",
        "size": "12",
        "lease": "1 d 12 h",
        "spread": None,
        "wait": None,
    }
    assert 'min="16 GiB"' in fields["xml"]
    assert (
        dict(browser.get(ways["Allow several types and blocks"]).fields(SENT))["spread"] == "true"
    )
    assert "fresh is requested" in again.send(SENT).words
    assert browse(there, group="web").get(ways["Change and send again"]).status == 404, (
        "of another group"
    )
    assert "Change and send again" not in browse(there, "viewer").get(page.path).words


# ---------------------------------------------------------------- requests


def test_requests_are_listed_with_why_they_wait(there: Served) -> None:
    page = browse(there).get("/requests")
    assert "2 more" in page.words
    assert "staging" not in page.words
    assert "No request matches this filter" in page.browser.get("/requests", state="rejected").words


def test_a_request_shows_who_is_ahead(there: Served) -> None:
    page = browse(there, group="web").get("/requests/4")
    (ahead,) = page.tree.xpath("//ol[@class='queue']/li[1]/div")
    assert "a vcluster of another group" in ahead.text_content()
    assert "batch" not in page.words.partition("Would do")[2].partition("Types of nodes")[0]
    assert "small no: memory/mib: at least 512GiB wanted" in page.words
    assert "batch" in signed_in(there).get("/requests/4").words
    (tile,) = page.tree.xpath("//h2[text()='Place in the queue']/following-sibling::p/text()")
    (place,) = page.tree.xpath("//ol[@class='queue']/li[@aria-current]/span[@class='place']/text()")
    assert tile == place, "one place in the queue"


def test_a_cluster_that_ends_waits_for_nothing(there: Served) -> None:
    there.tx(
        lambda tx: tx.execute(
            update(t.vclusters).where(t.vclusters.c.name == "staging").values(state="releasing")
        )
    )
    browser = browse(there, group="web")
    for path in ("/", "/vclusters"):
        row = browser.get(path).tree.xpath("//tr[th/a/text()='staging']")[0]
        words = " ".join(row.text_content().split())
        assert "waits" not in words
        assert "starts when granted" not in words
        assert "ended: its nodes are released" in words


def test_a_stopped_request_is_tried_again(there: Served) -> None:
    r = t.node_requests
    there.tx(
        lambda tx: tx.execute(
            update(r).where(r.c.id == 10).values(state="stopped", reason="no place for the seed")
        )
    )
    page = browse(there).get("/requests/10")
    assert "No place for the seed" in page.words
    assert "The request is tried again." in page.send("/requests/10/retry").words
    assert asked(there, "batch")[0].state == "pending"


def test_withdrawing(there: Served) -> None:
    page = browse(there).get("/requests/10")
    assert "The request is withdrawn." in page.send("/requests/10/withdraw").words
    assert asked(there, "batch")[0].state == "withdrawn"
    page = browse(there, group="web").get("/requests/4")
    assert "staging ends" in page.send("/vclusters/staging/end").words
    assert browse(there, "viewer").get("/requests/10").status == 200


def test_requests_of_others_are_not_found(there: Served) -> None:
    assert browse(there, group="web").get("/requests/10").status == 404


# ---------------------------------------------------------------- notices


def test_notices(there: Served) -> None:
    browser = browse(there)
    page = browser.get("/notices")
    assert "batch is ready" in page.words
    assert "farm is wanted" not in page.words
    assert "No notice matches this filter" in browser.get("/notices", kind="reclaim").words
    one = browser.get(page.tree.xpath("//main//li//a[contains(@href, '/notices/')]/@href")[0])
    assert "All 9 nodes of cluster batch are active." in one.words
    assert browse(there, group="web").get(one.path).status == 404


def test_presets_fill_the_form_in(there: Served) -> None:
    page = browse(there).get(NEW)
    links = page.tree.xpath("//nav[@class='presets']//a")
    words = {each.text_content(): each.get("href") for each in links}
    page = browse(there).get(words["16 preemptible nodes for a week, of one type or several"])
    fields = dict(page.fields(SENT))
    assert (fields["size"], fields["lease"]) == ("16", "1w")
    assert page.tree.xpath("//input[@name='preemptible'][@type='checkbox'][@checked]")
    assert page.tree.xpath("//input[@name='spread'][@type='checkbox'][@checked]")
    (before,) = [href for word, href in words.items() if word.startswith("As batch: ")]
    assert dict(browse(there).get(before).fields(SENT))["name"] == "batch"
    assert not [word for word in words if "chemistry" in word or "secret" in word]


def test_an_owner_s_navigation_has_five_entries_and_what_waits(there: Served) -> None:
    page = browse(there).get("/requests")
    own = page.tree.xpath("//nav[@aria-label='Main']/ul/li/a/@href")
    assert own == ["/", "/vclusters", "/templates", "/groups", "/notices"]
    assert page.tree.xpath("//li[@class='here']/a/@href") == ["/vclusters"]
    assert page.tree.xpath("//nav//a[@aria-current]/@href") == ["/requests"]
    waiting = len(page.tree.xpath("//main//tbody/tr[contains(., 'waiting')]"))
    counted = page.tree.xpath("//nav//a[@href='/requests']/span[@data-counted]/text()")
    assert waiting
    assert counted == [str(waiting)], "of the own groups alone"


def test_an_administrator_s_navigation_has_three_groups(there: Served) -> None:
    page = signed_in(there).get("/faults")
    assert page.tree.xpath("//nav[@aria-label='Main']/h2/text()") == ["Use", "Machines", "Site"]
    assert page.tree.xpath("//nav//a[@aria-current]/@href") == ["/faults"]
    aside = len(page.tree.xpath("//main//section[.//h2[contains(., 'failed')]]//tbody/tr"))
    counted = page.tree.xpath("//nav//a[@href='/faults']/span[@data-counted][not(@hidden)]/text()")
    assert [int(each) for each in counted] == ([aside] if aside else [])
