"""Names as long as they may be: no page has to be scrolled sideways for them, on a desk or a
phone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.portal_site import Portal
from tests.system.browser import SIZES, chromium, context, too_wide
from tests.system.test_portal_pages import signed_in

pytestmark = [pytest.mark.system, pytest.mark.in_turn(3), pytest.mark.xdist_group("portal")]
LONG = "n" * 63
USER = "u" * 32


def lengthen(portal: Portal) -> None:
    """What can be called something is called so."""
    with portal.client() as client:
        client.post("/groups", {"name": LONG})
        client.post(
            "/users",
            {"name": USER, "full_name": "Maximiliane" * 18, "email": f"{'m' * 60}@{'e' * 60}.org"},
        )
        client.call("PUT", f"/groups/{LONG}/members/{USER}", {"role": "owner"})
        client.post("/blocks", {"name": LONG})
        client.patch("/types/small", {"name": LONG})
        client.patch("/nodes/node01", {"name": LONG, "block": LONG})
        client.post("/vclusters", {"name": LONG, "size": 2, "template": "debian", "group": LONG})
        client.post("/nodes/node20/quarantine", {"reason": "x" * 900})


def test_long_names_break(tmp_path: Path) -> None:
    portal = Portal(tmp_path)
    portal.found()
    paths = [
        "/",
        "/groups",
        f"/groups/{LONG}",
        "/vclusters",
        f"/vclusters/{LONG}",
        "/requests",
        "/nodes",
        f"/nodes/{LONG}",
        "/nodes/node20",
        "/people",
        f"/people/{USER}",
        f"/blocks/{LONG}",
        "/types",
        f"/types/{LONG}",
        "/audit",
        "/calendar",
    ]
    wide = []
    with portal, chromium() as browser:
        lengthen(portal)
        for size in SIZES:
            profile = context(browser, size)
            page = signed_in(portal, profile, "administrator")
            for path in paths:
                answer = page.goto(portal.url + path)
                assert answer is not None
                assert answer.status == 200, path
                wide += [(size, path)] if too_wide(page) else []
            profile.close()
    assert wide == []
