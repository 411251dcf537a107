"""The portal's pages about images and uploads, and those where a node is made into an image."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import json
from typing import Any

import pytest

from cod.model import HostPart
from cod.states import NodeState
from cod.store import servers
from cod.store.images import images, uploads
from cod.store.nodes import captures, nodes
from tests.net.apiserver import NOW, Served
from tests.net.ownersite import browse, engine, furnished_sqlite, there
from tests.net.portalclient import Browser, signed_in

pytestmark = pytest.mark.slow

CAPTURE = "/nodes/node01/capture"


def test_images_with_who_uses_them(there: Served) -> None:
    browser = browse(there)
    page = browser.get("/images")
    assert "execd" in page.words
    assert "nginx" not in page.words
    assert page.tree.xpath("//tr[th/a='physics/execd']/td[@data-label='Used by']/a/text()") == [
        "physics/execution-host"
    ]
    one = browser.get("/images/physics/execd")
    (sha256,) = one.tree.xpath("//code/text()")
    assert len(sha256) == 64
    assert "It cannot be deleted while physics/execution-host@1 uses it." in one.words
    assert browser.get("/images/web/nginx").status == 404


def test_deleting_is_refused_while_it_is_used_and_says_by_whom(there: Served) -> None:
    browser = browse(there)
    token = [pair for pair in browser.get("/images").fields("/sign-out") if pair[0] == "csrf"]
    refused = browser.post("/images/physics/execd/delete", [*token])
    assert refused.status == 409
    assert "is used by physics/execution-host@1" in refused.words
    there.tx(
        images.add,
        name="spare",
        group_id=2,
        state="ready",
        format="raw",
        sha256="",
        source="",
        content="disk",
        created_at=NOW,
    )
    assert (
        "Image spare is deleted." in browser.get("/images/spare").send("/images/spare/delete").words
    )
    assert browser.post("/images/debian-12/delete", [*token]).status == 403


def test_an_upload_by_the_script_is_seen_and_given_up(there: Served) -> None:
    browser = browse(there)
    page = browser.get("/images/new")
    assert page.tree.xpath("//form/@data-upload-to") == ["/api/v1/uploads"]
    made = _api(
        browser, "POST", "/api/v1/uploads", {"name": "fresh", "group": "physics", "size": 4096}
    )
    assert made.status == 201, made.text
    upload = json.loads(made.text)
    shown = browser.get("/images/new")
    assert "fresh of physics, 0 B of 4.0 KiB" in shown.words
    assert browse(there, group="web").get("/images/new").words.count("fresh") == 0
    assert "The upload is cancelled." in shown.send(f"/uploads/{upload['id']}/drop").words
    assert there.tx(uploads.every) == []


def _api(browser: Browser, method: str, path: str, body: Any) -> Any:
    """Ask as the page's script does: by the cookie, with the form's token."""
    (csrf,) = set(
        browser.get("/images/new").tree.xpath("//form[@data-upload-to]//input[@name='csrf']/@value")
    )
    headers = {
        "X-CSRF-Token": csrf,
        "Origin": f"https://{browser.host}",
        "Content-Type": "application/json",
    }
    return browser.ask(method, path, json.dumps(body).encode(), headers)


def test_the_quota_is_shown(there: Served) -> None:
    administrator = signed_in(there)
    administrator.get("/groups/physics").send("/groups/physics/limits", image_quota="513 MiB")
    page = browse(there).get("/images")
    assert "512.0 MiB of 513.0 MiB" in page.words
    refused = _api(
        page.browser, "POST", "/api/v1/uploads", {"name": "big", "group": "physics", "size": 2**21}
    )
    assert "larger quota" in refused.text


# ---------------------------------------------------------------- nodes into images


def test_a_node_is_made_into_an_image(there: Served) -> None:
    browser = browse(there, "member")
    page = browser.get(CAPTURE)
    assert "An image of n1 of batch" in page.words
    wrong = page.send(CAPTURE, image="Not a name", template="mine")
    assert wrong.status == 422
    assert ("image", "Not a name") in wrong.fields(CAPTURE)
    taken = wrong.send(CAPTURE, image="execd")
    assert taken.status == 409
    done = taken.send(CAPTURE, image="batch-disk", template="batch-copy", group="physics")
    assert "node01 is being made into the image physics/batch-disk." in done.words, done.words
    row = there.tx(lambda tx: captures.get(tx, nodes.by_name(tx, "node01").id))
    assert (row.image, row.template, row.group_id) == (
        "physics/batch-disk",
        "physics/batch-copy",
        2,
    )
    assert "wanted" in done.words
    assert "node01 physics/batch-disk physics" in browser.get("/captures").words
    assert "No saved node matches this filter." in browser.get("/captures", q="nothing").words
    assert "returns to its previous state" in done.send(f"{CAPTURE}/cancel").words
    assert "cancelled" in browser.get(CAPTURE).words


@pytest.mark.parametrize(("part", "what"), [("3", "3"), (" map ", "map")])
def test_a_part_of_a_node_is_made_into_an_image(there: Served, part: str, what: str) -> None:
    page = browse(there, "member").get(CAPTURE)
    assert page.send(CAPTURE, image="part", part="129").status == 422
    done = page.send(CAPTURE, image="part", part=part, template="mine", group="physics")
    assert ("of partition 3" if what == "3" else "of the partition map") in done.words
    row = there.tx(lambda tx: captures.get(tx, nodes.by_name(tx, "node01").id))
    assert (row.image, row.template, row.what) == ("physics/part", "", what)


def test_a_capture_that_runs_has_a_bar(there: Served) -> None:
    def begin(tx: Any) -> None:
        node = nodes.by_name(tx, "node18")
        captures.put(
            tx,
            node.id,
            image="farm-disk",
            template="",
            group_id=3,
            source_id=None,
            state="running",
            secret="0" * 64,
            actor="user:zoe",
            asked_at=NOW - 60,
        )
        captures.change(tx, node.id, generation=node.generation)
        assert node.state == NodeState.CAPTURE

    there.tx(begin)
    page = browse(there, group="web").get("/nodes/node18/capture")
    (bar,) = page.tree.xpath("//*[@data-progress='node18']//progress")
    assert int(bar.get("value")) == 50
    assert "1.0 GiB of 2.0 GiB" in page.words
    assert not page.tree.xpath("//form[@action='/nodes/node18/capture']"), "it is under way"


def test_who_looks_makes_no_images_and_others_see_nothing(there: Served) -> None:
    assert not browse(there, "viewer").get(CAPTURE).tree.xpath("//main//form")
    assert browse(there, group="web").get(CAPTURE).status == 404


def test_a_page_says_when_no_image_server_runs(there: Served) -> None:
    """An upload was taken, and nothing ever became of it."""
    browser = browse(there)
    for path in ("/images", "/images/new"):
        assert "No image server runs" in browser.get(path).words
    part = HostPart("head1", "images", ("10.77.0.1",), "0.1", "0042", NOW, NOW)
    there.tx(servers.renew, part)
    for path in ("/images", "/images/new"):
        assert "No image server runs" not in browser.get(path).words
    there.clock.now += 120
    assert "No image server runs" in browser.get("/images").words
