"""Enrolling and revoking a vcluster's manager in the portal."""

# ruff: noqa: F401 (fixtures)

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cod.flows.vcms import vcms
from cod.model import Refused, Site
from cod.pool import Pool
from cod.security.ca import Ca
from cod.store import tables as t
from tests.net.apiserver import NOW, Served, serving
from tests.net.ownersite import browse, engine, furnished_sqlite

pytestmark = pytest.mark.slow

BATCH = "/vclusters/batch"


@pytest.fixture
def there(
    pool: Pool, reactor: Any, in_reactor: Callable[..., Any], site: Site, tmp_path: Path
) -> Iterator[Served]:
    """The small site, with an authority for VCMs."""
    with serving(pool, reactor, in_reactor, site, Ca(tmp_path / "ca", "test")) as served:
        yield served


def test_what_it_needs_is_shown_once_and_it_can_be_revoked(there: Served) -> None:
    browser = browse(there)
    shown = browser.get(BATCH).send(f"{BATCH}/vcm/enrol")
    assert shown.status == 200, shown.words
    texts = shown.tree.xpath("//pre/text()")
    assert "PRIVATE KEY" in texts[0]
    assert "CERTIFICATE" in texts[1]
    assert "batch" in texts[3]
    assert shown.tree.xpath("//h2/small/text()") == ["vcm.key", "vcm.crt", "ca.crt", "vcm.toml"], (
        "as the configuration names them, and `cod vcm enroll` writes them"
    )
    assert shown.headers["Cache-Control"] == "no-store"
    page = browser.get(BATCH)
    assert "anywhere, by its certificate" in page.words
    assert "PRIVATE KEY" not in page.text
    assert "The autoscaler of batch is revoked." in page.send(f"{BATCH}/vcm/revoke").words
    with pytest.raises(Refused, match="nobody is enrolled"):
        there.tx(vcms.show, "batch")


def test_a_certificate_that_ends_is_warned_of(there: Served) -> None:
    browser = browse(there)
    browser.get(BATCH).send(f"{BATCH}/vcm/enrol")
    assert "Certificate endsin 397 d" in browser.get(BATCH).words
    v = t.vcms.c
    for ends_at, says in (
        (NOW + 9 * 86400.0, "expires soon and was not renewed"),
        (NOW - 1.0, "has expired: the autoscaler cannot"),
    ):
        there.tx(
            lambda tx, at=ends_at: tx.execute(
                t.vcms.update().where(v.serial != "").values(ends_at=at, warned_at=NOW)
            )
        )
        assert f"Its certificate {says}" in browser.get(BATCH).words


def test_one_inside_gets_what_it_needs_on_its_node(there: Served) -> None:
    browser = browse(there)
    wrong = browser.get(BATCH).send(f"{BATCH}/vcm/enrol", inside="true", head="No Label")
    assert wrong.status == 422
    assert ("head", "No Label") in wrong.fields(f"{BATCH}/vcm/enrol")
    shown = wrong.send(f"{BATCH}/vcm/enrol", head="n2")
    assert "The autoscaler runs on node n2" in shown.words, shown.words
    assert "for node n2 to fetch its certificate" in browser.get(BATCH).words


def test_members_enrol_nobody(there: Served) -> None:
    browser = browse(there, "member")
    (csrf,) = {value for name, value in browser.get(BATCH).fields("/sign-out") if name == "csrf"}
    for what in ("enrol", "revoke"):
        assert browser.post(f"{BATCH}/vcm/{what}", [("csrf", csrf)]).status == 403
