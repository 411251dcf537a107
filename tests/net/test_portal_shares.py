"""The page that explains a group's share, and sets it."""

# ruff: noqa: F401, F811 (fixtures)

from __future__ import annotations

import pytest

from cod.store.people import groups
from tests.net.apiserver import Served
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
