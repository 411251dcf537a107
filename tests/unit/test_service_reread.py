"""SIGHUP reaches the services that have something to read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cod.service import PartContext, Running
from cod.site import load
from tests.unit.test_config import GOOD


class Service:
    """One that has something to read."""

    def __init__(self) -> None:
        self.reads = 0

    def reread(self) -> None:
        self.reads += 1


@pytest.mark.usefixtures("log_levels")
def test_services_read_their_files_again_with_the_site_file(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(GOOD)
    site, settings = load.load(path)
    nothing: Any = None
    running = Running("web", PartContext(nothing, nothing, site, settings, nothing), [])
    service = Service()
    running._started = [object(), service]
    running.reread()
    assert service.reads == 1
    path.write_text("nonsense")
    running.reread()
    assert service.reads == 1
