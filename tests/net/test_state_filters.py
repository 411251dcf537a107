"""Lists that are filtered by a state, a kind or a name that there is not."""

from __future__ import annotations

import pytest

from cod.client import ApiError
from tests.net.apiserver import Served


@pytest.mark.parametrize("path", ["/nodes", "/vclusters", "/requests", "/reclaims"])
def test_a_state_that_there_is_not_is_no_empty_list(served: Served, path: str) -> None:
    with pytest.raises(ApiError) as refused:
        served.local.get(path, state="actve")
    assert (refused.value.status, refused.value.field) == (422, "state")
    assert refused.value.detail.startswith("should be ")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/notices", "kind"),
        ("/conflicts", "kind"),
        ("/ports", "node"),
        ("/ports", "switch"),
        ("/templates", "name"),
        ("/timeline", "type"),
        ("/timeline", "group"),
        ("/timeline", "vcluster"),
        ("/pool/history", "type"),
    ],
)
def test_a_name_or_kind_that_there_is_not_is_no_empty_list(
    served: Served, path: str, name: str
) -> None:
    with pytest.raises(ApiError) as refused:
        served.local.get(path, **{name: "mispelt"})
    assert (refused.value.status, refused.value.field) == (422, name)


@pytest.mark.parametrize(
    ("path", "kind"), [("/notices", "ready,found-off"), ("/conflicts", "dhcp")]
)
def test_kinds_that_there_are(served: Served, path: str, kind: str) -> None:
    assert served.local.get(path, kind=kind)["items"] == []


@pytest.mark.parametrize(
    ("path", "state"),
    [
        ("/nodes", "off,inactive"),
        ("/nodes", "off, inactive"),
        ("/nodes", ""),
        ("/vclusters", "pending,ended"),
        ("/requests", "granted"),
        ("/reclaims", "open"),
    ],
)
def test_states_that_there_are(served: Served, path: str, state: str) -> None:
    assert served.local.get(path, state=state)["items"] == []
