"""A server whose data folder lies on a full disk: no part ends, changes are answered with a
sentence, and everything goes on by itself when there is room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attack.small_disk import ServingOnSmallDisk, fill_and_free
from tests.net.server_process import founded

pytestmark = [pytest.mark.system, pytest.mark.slow]


@pytest.fixture
def serving() -> Iterator[ServingOnSmallDisk]:
    with founded(ServingOnSmallDisk) as serving:
        yield serving


def test_a_full_disk_ends_no_part(serving: ServingOnSmallDisk) -> None:
    assert fill_and_free(serving) == 0
    assert "Traceback" not in serving.log
    assert serving.stop() == 0
