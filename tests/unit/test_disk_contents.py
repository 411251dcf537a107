"""What a machine's disks hold is told from the seed, and nothing is written."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from cod import orders
from cod.model import InstallationRecord
from cod.policy import stories
from cod.policy.nodes import seed as node_seed
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


DIGEST = "5e" * 32


@pytest.mark.parametrize(
    ("said", "whole"),
    [
        (f"5.1700 {DIGEST}", f" 5.1700 {DIGEST}"),
        ("5.1700", ""),
        (f"5.1700 {DIGEST} more", ""),
        (7, ""),
    ],
)
def test_the_mark_names_the_installation_for_servers_that_read_it(
    disk: Disk, said: object, whole: str
) -> None:
    meta = {"instance-id": "12.41", "local-hostname": "n1.web.example.org"}
    written(disk, json.dumps({**meta, "cod-installation": said}))
    mark = "12.41 n1.web.example.org"
    assert disk_contents.newest_mark([disk]) == mark, "a server of before takes it for a doubt"
    assert disk_contents.newest_mark([disk], installation=True) == mark + whole


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
        ("7.3 n1.web.example.org 5.1700", StoryVerdict.DIFFERS),
        ("", StoryVerdict.DIFFERS),
    ],
)
def test_a_mark_that_the_database_cannot_know_differs(said: str, verdict: StoryVerdict) -> None:
    assert stories.judge(7, 4, said)[0] is verdict


PRIMED = InstallationRecord("prime", 5, 1700.9, DIGEST)


@pytest.mark.parametrize(
    ("said", "recorded", "verdict"),
    [
        (f"5.1700 {DIGEST}", PRIMED, StoryVerdict.AGREES),
        ("", PRIMED, StoryVerdict.AGREES),  # a seed of before
        (f"5.1701 {DIGEST}", PRIMED, StoryVerdict.DIFFERS),  # an id that was given again
        (f"6.1700 {DIGEST}", PRIMED, StoryVerdict.DIFFERS),
        (f"5.1700 {'00' * 32}", PRIMED, StoryVerdict.DIFFERS),
        (f"5.1700 {'00' * 32}", PRIMED._replace(pending=True), StoryVerdict.AGREES),
        (f"5.1700 {'00' * 32}", PRIMED._replace(template=""), StoryVerdict.AGREES),
        (f"6.1700 {DIGEST}", InstallationRecord(), StoryVerdict.AGREES),  # its history is deleted
        ("", InstallationRecord("wipe"), StoryVerdict.DIFFERS),
    ],
)
def test_a_generation_that_was_given_again_is_told_by_what_was_installed_in_it(
    said: str, recorded: InstallationRecord, verdict: StoryVerdict
) -> None:
    marks = f"7.3 n1.web.example.org {said}".strip()
    assert stories.judge(7, 4, marks, recorded)[0] is verdict
    assert stories.is_mark_of(marks, recorded) == (
        recorded.template != "" and DIGEST in (said[-64:] or DIGEST)
    )


def test_the_seeds_installation_is_what_a_mark_ends_in(disk: Disk) -> None:
    part = node_seed.installation(5, 1700.9, DIGEST)
    told = {"instance-id": "7.3", "local-hostname": "n1.web.example.org", **part.meta}
    written(disk, json.dumps(told))
    marks = disk_contents.newest_mark([disk], installation=True)
    assert stories.judge(7, 4, marks, PRIMED)[0] is StoryVerdict.AGREES
    assert stories.judge(7, 4, marks, PRIMED._replace(vcluster_id=6))[0] is StoryVerdict.DIFFERS
