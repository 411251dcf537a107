"""What a VCM shows of itself: its certificate and key, if they can be used; how long the
certificate holds."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cod.security.ca import Ca
from cod.vcm.connect import days_left, over_tls

NOW = datetime.now(UTC)
SERVERS = [("192.0.2.1", 8071)]


@pytest.fixture
def ca(tmp_path: Path) -> Ca:
    return Ca(tmp_path / "ca", "test")


def reached(*pems: bytes) -> Any:
    return over_tls(None, SERVERS, *pems)


def test_a_certificate_with_its_key(ca: Ca) -> None:
    one = ca.server(["192.0.2.1"], NOW)
    assert callable(reached(one.certificate, one.key, ca.certificate))
    assert callable(reached(b"", b"", ca.certificate)), "an invitation wants none"


def test_what_does_not_belong_together_is_said_before_anything_is_connected(ca: Ca) -> None:
    one, other = (ca.server(["192.0.2.1"], NOW) for _ in range(2))
    for pems, why in (
        ((one.certificate, other.key, ca.certificate), "the key is of another certificate"),
        ((one.certificate, b"", ca.certificate), "cannot be used"),
        ((one.key, one.key, ca.certificate), "cannot be used"),
        ((one.certificate, one.key, b"nothing"), "cannot be used"),
    ):
        with pytest.raises(ValueError, match=why):
            reached(*pems)


def test_how_long_it_holds(ca: Ca) -> None:
    one = ca.server(["192.0.2.1"], NOW)
    left = days_left(one.certificate, NOW.timestamp())
    assert left > 1
    assert days_left(one.certificate, NOW.timestamp() + 86400) == pytest.approx(left - 1)
    with pytest.raises(ValueError, match="cannot be read"):
        days_left(b"nothing", 0.0)
