"""Volumes in the portal, by the API and on the command line: what owners see and do, before any
file server answers."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

from dataclasses import replace

import pytest

from cod.flows.volumes import exports
from cod.model import FileServer, Site, VolumeRules
from cod.store import volumes
from tests.net.apiserver import NOW, Served, as_json
from tests.net.ownersite import browse, engine, furnished_sqlite, there
from tests.net.portalclient import signed_in

pytestmark = pytest.mark.slow

DATA = "/volumes/physics/data"
SERVERS = (FileServer("nas", "ganesha", "10.77.0.5", "/srv/cod"),)


@pytest.fixture
def site(site: Site) -> Site:
    return replace(site, fileservers=SERVERS, volumes=VolumeRules(quota=2**40))


def settle(served: Served) -> None:
    """Have the file server carry out all that is due."""
    site = Site("test", "cod.test", (), fileservers=SERVERS)
    for task in served.tx(exports.claim, "s1", {"nas": 10}, site, NOW + 10, 60.0):
        served.tx(exports.succeeded, task, "btrfs", NOW)


def test_an_owner_makes_attaches_and_deletes_a_volume(there: Served) -> None:
    browser = browse(there)
    assert "No volumes yet." in browser.get("/volumes").words
    wrong = browser.get("/volumes/new").send("/volumes", name="data", size="much")
    assert "should be an amount such as 500 GB" in wrong.words
    page = wrong.send("/volumes", name="data", size="2 TB")
    assert "too much for group physics" in page.words
    page = page.send("/volumes", name="data", size="200 GB")
    assert page.path == DATA
    assert "Volume physics/data is being made." in page.words
    settle(there)
    page = browser.get(DATA).send(f"{DATA}/attach", mount="/etc")
    assert "/etc belongs to the nodes&#39; operating system" in page.text
    page = page.send(f"{DATA}/attach", mount="/scratch", delete_after="30 days")
    assert "waiting for the file server" in page.words
    assert "deleted after 30 d" in page.words
    settle(there)
    page = browser.get(DATA)
    assert "exported" in page.words
    assert "It can be deleted when no cluster mounts it." in page.words
    [(vcluster, _)] = [(one.vcluster, one.id) for one in there.tx(volumes.attachments, [1])]
    page = page.send(f"{DATA}/detach")
    assert f"physics/data is being withdrawn from {vcluster}." in page.words
    settle(there)
    browser.get(DATA).send(f"{DATA}/resize")  # as the field shows it
    assert there.tx(volumes.named, "physics/data").size == 200 * 10**9
    settle(there)
    page = browser.get(DATA).send(f"{DATA}/snapshots", snapshot="monday")
    settle(there)
    page = browser.get(DATA)
    assert "monday ready" in page.words
    [row] = there.local.get("/audit", action="snapshot create")["items"]
    assert row["before"] == {"snapshots": [], "state": "ready"}
    assert row["after"] == {"snapshots": ["monday"], "state": "changing"}
    page = page.send(f"{DATA}/delete")
    assert "until then it can be restored" in page.words
    assert "is restored." in page.send(f"{DATA}/restore").words


def test_a_copy_of_a_snapshot_stays_one_when_its_form_was_wrong(there: Served) -> None:
    browser = browse(there)
    browser.get("/volumes/new").send("/volumes", name="data", size="200 GB")
    settle(there)
    browser.get(DATA).send(f"{DATA}/snapshots", snapshot="monday")
    settle(there)
    [link] = browser.get(DATA).tree.xpath("//a[.='New volume of it']/@href")
    wrong = browser.get(link).send("/volumes", name="copy", size="200")
    assert wrong.status == 422, wrong.words
    assert "It begins with the data of physics/data" in wrong.words
    page = wrong.send("/volumes", size="200 GB")
    assert page.path == "/volumes/physics/copy", page.words
    assert there.tx(volumes.named, "physics/copy").source


def test_a_viewer_sees_and_changes_nothing(there: Served) -> None:
    browse(there).get("/volumes/new").send("/volumes", name="data", size="200 GB")
    page = browse(there, "viewer").get(DATA)
    assert "physics" in page.words
    assert not page.tree.xpath("//main//form[contains(@action, 'volumes')]")
    assert browse(there, "owner", "web").get(DATA).status == 404


def test_the_wizard_asks_for_data(there: Served) -> None:
    browser = browse(there)
    browser.get("/volumes/new").send("/volumes", name="data", size="200 GB")
    page = browser.get("/vclusters/new")
    assert "Mount home directories" in page.words
    page = page.send(
        "/vclusters",
        name="fresh",
        size="1",
        template="debian",
        **{
            "volumes.0.volume": "physics/data",
            "volumes.0.mount": "/in",
            "volumes.0.delete_after": "1 day",
        },
    )
    assert "is kept for 7 d after its vcluster" in page.words, page.words
    page = page.send("/vclusters", **{"volumes.0.delete_after": "30 days"})
    assert page.path == "/vclusters/fresh", page.words
    assert [
        (one["name"], one["attachments"][0]["mount"]) for one in as_json(there, "volume", "list")
    ] == [("physics/data", "/in"), ("physics/home", "/home")]


def test_a_volume_that_is_there_is_shown_where_one_is_to_be(there: Served) -> None:
    for group in ("physics", "site"):
        words = ("volume", "create", "data", "--size", "200G", "--group", group, "--if-missing")
        made = as_json(there, *words)
        assert as_json(there, *words)["name"] == made["name"] == f"{group}/data"


def test_the_command_line(there: Served) -> None:
    made = as_json(there, "volume", "create", "data", "--size", "200G", "--group", "physics")
    assert (made["name"], made["size"], made["state"]) == ("physics/data", 200 * 2**30, "making")
    settle(there)
    assert as_json(there, "volume", "resize", "physics/data", "300G")["size"] == 300 * 2**30
    as_json(there, "volume", "snapshot", "physics/data", "monday")
    settle(there)
    assert as_json(there, "volume", "show", "physics/data")["snapshots"][0]["state"] == "ready"
    copy = as_json(
        there,
        "volume",
        "create",
        "copy",
        "--size",
        "300G",
        "--group",
        "physics",
        "--from",
        "physics/data",
        "--snapshot",
        "monday",
    )
    assert copy["name"] == "physics/copy"
    settle(there)
    gone = as_json(there, "volume", "delete", "physics/data", "--yes")
    assert gone["state"] == "deleted"
    assert as_json(there, "volume", "restore", "physics/data")["purge_at"] is None
    assert as_json(there, "volume", "servers")[0]["volumes"] == 2
    as_json(
        there,
        "vcluster",
        "create",
        "sim",
        "--size",
        "1",
        "--template",
        "debian",
        "--group",
        "physics",
        "--no-homes",
        "--volume",
        "data",
        "--volume",
        "copy:/in:ro",
    )
    found = as_json(there, "volume", "list")
    assert [
        (one["name"], one["attachments"][0]["mount"], one["attachments"][0]["read_only"])
        for one in found
    ] == [("physics/copy", "/in", True), ("physics/data", "/data", False)]
