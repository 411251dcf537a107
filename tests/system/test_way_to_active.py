"""A machine's whole way with the real server and the real agent, on a stand-in machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.site_images import offer
from tests.system.stand import Stand

pytestmark = pytest.mark.system

ROUND_TRIP = ["prime", "boot", "active", "trampoline", "wipe", "trampoline", "inactive"]


def test_powered_on_primed_active_released_wiped(tmp_path: Path) -> None:
    with Stand(tmp_path, machines=1) as stand:
        stand.serve()
        stand["m1"].on()
        stand.reaches("m1", "inactive")
        offer(stand, "red")
        stand.cod("vcluster", "create", "web", "--size", "1", "--template", "red")
        stand.reaches("m1", "active")
        stand.wait(
            lambda: stand["m1"].running().split() == ["red", "10.77.128.1", "n1", "web.cod.test"]
        )
        stand.cod("vcluster", "delete", "web")
        stand.reaches("m1", "inactive")
        assert stand.node("m1").disk == "clean"
        assert not any((stand["m1"].folder / "disk").read_bytes())
        assert [row["to_state"] for row in stand.history("m1")] == [
            "new",
            "registering",
            "trampoline",
            "inactive",
            *ROUND_TRIP,
        ]


def test_a_kept_disk_skips_priming_for_its_owner_alone(tmp_path: Path) -> None:
    with Stand(tmp_path, machines=1) as stand:
        stand.serve()
        stand["m1"].on()
        stand.reaches("m1", "inactive")
        offer(stand, "kept", cache="yes")
        stand.cod("vcluster", "create", "web", "--size", "1", "--template", "kept")
        stand.reaches("m1", "active")
        stand.cod("vcluster", "delete", "web")
        stand.reaches("m1", "inactive")
        assert stand.node("m1").disk == "cached"
        stand.cod("vcluster", "create", "again", "--size", "1", "--template", "kept")
        stand.reaches("m1", "active")
        assert [row["to_state"] for row in stand.history("m1")][-3:] == [
            "inactive",
            "boot",
            "active",
        ]
        stand.cod("vcluster", "delete", "again")
        stand.reaches("m1", "inactive")
        with stand.client() as api:
            api.post("/groups", {"name": "others", "priority": 0})
        stand.cod(
            "vcluster", "create", "theirs", "--size", "1", "--template", "kept", "--group", "others"
        )
        stand.reaches("m1", "active")
        assert [row["to_state"] for row in stand.history("m1")][-4:] == [
            "inactive",
            "prime",
            "boot",
            "active",
        ]
