"""The page that explains a group's share, and sets it."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import pytest

from cod.client import ApiError
from cod.store.people import groups
from tests.net.apiserver import Served, said
from tests.net.ownersite import browse, engine, furnished_sqlite, there
from tests.net.portalclient import ANN, signed_in

pytestmark = pytest.mark.slow


def test_a_groups_share_is_explained_and_administrators_set_it(there: Served) -> None:
    page = browse(there).get("/shares/physics")
    assert page.status == 200, page.words
    assert "physics used" in page.words
    assert "What would change it" in page.words
    assert not page.tree.xpath("//input[@name='guarantee']")
    assert browse(there).get("/shares/web").status == 404
    admin = signed_in(there, ANN)
    form = admin.get("/shares/physics")
    wrong = form.send("/shares/physics", shares="many")
    assert wrong.status == 422
    done = wrong.send("/shares/physics", shares="3", guarantee="2", node_limit="9", hours_limit="")
    assert "The shares and limits of physics are set." in done.words
    physics = there.tx(groups.by_name, "physics")
    assert (physics.shares, physics.guarantee, physics.node_limit) == (3.0, 2, 9)
    assert physics.hours_limit is None


@pytest.mark.nightly  # a loaded machine may need more than the minute that a preview may take
def test_a_change_is_tried_on_the_last_days_and_nothing_is_changed(there: Served) -> None:
    page = signed_in(there, ANN).get("/shares/physics")
    form = page.browser.post(
        "/shares/physics/preview", page.filled("/shares/physics", shares="7", days="7")
    )
    assert form.status == 200, form.words
    assert "With these shares" in form.words
    assert form.tree.xpath("//input[@name='shares']/@value") == ["7"]
    assert there.tx(groups.by_name, "physics").shares == 1.0
    done = form.send("/shares/physics")
    assert "The shares and limits of physics are set." in done.words
    assert there.tx(groups.by_name, "physics").shares == 7.0
    assert "With these shares" in said(
        there, "group", "set", "physics", "--limit", "2", "--preview", "--days", "3"
    )
    assert there.tx(groups.by_name, "physics").node_limit is None


def test_a_change_that_is_refused_is_refused_before_it_is_tried(there: Served) -> None:
    with pytest.raises(ApiError) as refused:
        there.local.post("/shares/physics/preview", {"guarantee": 100_000})
    assert refused.value.status == 409
    with pytest.raises(ApiError) as refused:
        there.local.post("/shares/physics/preview", {"days": 3})
    assert refused.value.status == 422
    assert browse(there).get("/shares/physics").tree.xpath("//button[.='Preview']") == []
