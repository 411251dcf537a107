"""Lists that are filtered by a state that there is not."""

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
