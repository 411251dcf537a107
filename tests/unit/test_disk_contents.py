"""What a machine's disks hold is told from the seed, and nothing is written."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from cod import orders
from cod.policy import stories
from cod.states import StoryVerdict
from trampoline import disk_contents, partitions, seed
from trampoline.inventory import Disk, file_disk
from trampoline.target import Target

PLACE = 32 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    path = tmp_path / "disk"
    path.touch()
    os.truncate(path, 64 << 20)
    return file_disk(path)


def written(disk: Disk, meta: str) -> None:
    """Write a partition table and a seed, as cprime does."""
    with Target(disk.path) as target:
        span = partitions.Span(1, PLACE, 1 << 20, "data", "cidata")
        partitions.Gpt(partitions.new_guid()).add(span, target).write(target)
        target.write(memoryview(seed.build({"user-data": "x", "meta-data": meta}, 1 << 20)), PLACE)


def test_blank_disks_are_blank(disk: Disk) -> None:
    assert disk_contents.newest_mark([disk]) == disk_contents.newest_mark([]) == stories.BLANK


@pytest.mark.parametrize("offset", [0, 65536, (64 << 20) - 4096])
def test_anything_at_an_end_of_a_disk_is_other(disk: Disk, offset: int) -> None:
    with Target(disk.path) as target:
        target.write(memoryview(b"LABELONE"), offset)
    assert disk_contents.newest_mark([disk]) == stories.OTHER


def test_the_seeds_instance_is_the_mark(disk: Disk) -> None:
    written(disk, '{"instance-id": "12.41", "local-hostname": "n1.web.example.org"}\n')
    before = Path(disk.path).read_bytes()
    assert disk_contents.newest_mark([disk]) == "12.41 n1.web.example.org"
    assert Path(disk.path).read_bytes() == before


@pytest.mark.parametrize(
    "meta", ["", "[]", "instance-id: i-1", '{"instance-id": "i-1"}', "[" * 5000]
)
def test_a_seed_of_others_is_no_mark(disk: Disk, meta: str) -> None:
    written(disk, meta)
    assert disk_contents.newest_mark([disk]) == stories.OTHER


@pytest.mark.parametrize("order_id", ["7.0", "7.1", "7.10", "12.345"])
def test_an_order_to_look_has_an_id_of_its_own(order_id: str) -> None:
    look_id = orders.look_id(order_id)
    assert look_id != order_id
    assert orders.current_id(look_id) == orders.current_id(order_id) == order_id
    assert re.fullmatch(r"[0-9]{1,18}\.[0-9]{1,18}", look_id), "as schema/confd.rng has it"


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("blank", StoryVerdict.AGREES),
        ("7.3", StoryVerdict.AGREES),
        ("7.4 n1.web.example.org", StoryVerdict.AGREES),
        ("7.5 n1.web.example.org", StoryVerdict.DIFFERS),
        ("8.3", StoryVerdict.DIFFERS),
        ("other", StoryVerdict.DIFFERS),
        ("7.3\n7.3", StoryVerdict.DIFFERS),
        ("", StoryVerdict.DIFFERS),
    ],
)
def test_a_mark_that_the_database_cannot_know_differs(said: str, verdict: StoryVerdict) -> None:
    assert stories.judge(7, 4, said)[0] is verdict
