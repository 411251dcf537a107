"""What eight systems published, beside what COD does: a table of docs/science. Its figures are
those of the page's other tables, so that each is written once.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests import manual

HEADS = ("System", "It publishes, or has", "Here", "State")

# Figures of the page: heading of the section, first cell of the row, head of the column.
FIGURES = {
    "web": ("A day of three pools", "web", "on average"),
    "day": ("A day of three pools", "day", "on average"),
    "night": ("A day of three pools", "night", "on average"),
    "parked": ("Readiness", "parked in its pool", "COD"),
    "elsewhere": ("Readiness", "parked in another pool", "COD"),
    "asleep": ("Readiness", "asleep", "COD"),
    "idle": ("Readiness", "idle in the pool, or parked there", "COD"),
    "warm": ("Readiness", "warm, with the image on its disk", "COD"),
    "off": ("Readiness", "cold (off), disk wiped", "COD"),
    "unshared": ("Ways to share two pools", "equal groups, no shares", "Smaller's"),
    "guaranteed": ("Ways to share two pools", "the smaller is guaranteed 7", "Smaller's"),
    "fair": ("Ways to share two pools", "fair shares", "Smaller's"),
    "fair_idle": ("Ways to share two pools", "fair shares, 8 more groups idle", "Smaller's"),
    "preempted": ("Ways to share two pools", "the larger is preemptible", "Smaller's"),
    "anew": ("Ways to share two pools", "the larger is preemptible", "Jobs begun anew"),
    "fresh": ("A node for each job", "installed anew", "100 jobs done"),
    "fresh_ratio": ("A node for each job", "installed anew", "Ratio"),
    "kept": ("A node for each job", 'its disk kept (`cache="yes"`)', "100 jobs done"),
    "kept_ratio": ("A node for each job", 'its disk kept (`cache="yes"`)', "Ratio"),
    "fresh_to_kept": ("A node for each job", "installed anew to disk kept", "100 jobs done"),
    "worst": ("One queue of 512 machines", "0", "Load, conservative"),
    "best": ("One queue of 512 machines", "1", "Load, conservative"),
    "fixed_worst": ("One queue of 512 machines", "0", "Load, fixed places"),
    "fixed_half": ("One queue of 512 machines", "0.5", "Load, fixed places"),
    "alone": ("Gaps filled", "0.5", "Goodput without filler"),
    "filled": ("Gaps filled", "0.5", "with filler"),
}
ROWS = (
    (
        "COD of 2003",
        "an image of 105 to 422 MB (compressed) is on a disk in 122 to 129 s; eight nodes are"
        " installed in parallel in under six minutes",
        "[priming](benchmarks.md), on disks and networks of today: no comparison of programs",
        "whole",
    ),
    (
        "",
        "nodes were moved under control of VCMs; no graphs",
        "of 40 nodes a web farm holds {web}, a pool of the day {day}, one of the night {night}",
        "whole",
    ),
    (
        "",
        "users define groups and delegate rights; images of partitions",
        "[groups by users](people.md#groups-of-users), single rights, [one partition or the"
        " map](capture.md#one-partition-or-the-map) captured and put back",
        "whole",
    ),
    (
        "",
        "DHCP, DNS and NIS servers of its own",
        "DHCP, DNS, LDAP; NIS maps for a `ypserv` beside COD ([why](0054-nis-stays-beside-cod.md))",
        "NIS: part, by decision",
    ),
    (
        "",
        "a reserve of idle nodes that is managed for energy",
        "two marks, or [marks by forecast](energy.md#marks-by-forecast); a curve of price or carbon",
        "whole",
    ),
    (
        "U-LITE's CRM",
        "queue times: free less than 10 s, up 30 to 40 s, off 60 to 90 s",
        "idle {idle}, warm {warm}, off {off}; on a busier host parked {parked}, parked in another"
        " pool {elsewhere}, asleep {asleep}",
        "whole; under emulation",
    ),
    (
        "",
        "machines are virtual, and cloned in 300 to 600 s",
        "[virtual hosts](virtual-hosts.md), a preview that was not tried on KVM",
        "part",
    ),
    (
        "Synergy",
        "private quotas are guaranteed, the rest is shared by use; requests wait in a queue",
        "guarantees and shares: the smaller pool's jobs wait {fair}, {fair_idle} beside eight idle"
        " groups, {guaranteed} by a guarantee alone, {unshared} without either",
        "whole",
    ),
    (
        "",
        "CPUs and memory have factors of their own",
        "[shares and guarantees of a type](shares.md#shares-and-guarantees-of-a-type), [ranks by"
        " dominant shares](shares.md#ranks-by-dominant-shares)",
        "part: whole nodes only",
    ),
    (
        "",
        "users have shares below their project's",
        "subgroups, and [users' shares inside a group](shares.md#users-shares-inside-a-group)",
        "whole",
    ),
    (
        "FaSS",
        "instances have a lifetime, without which fair shares mean nothing",
        "[leases](sharing.md#leases) have a maximum, [node-hours](shares.md#node-hours-of-a-month)"
        " bound them; those who wait are told [when they"
        " start](allocation.md#expected-starts); [whole clusters are"
        " reserved](reservations.md)",
        "whole",
    ),
    (
        "OPIE",
        "preemptible instances run where nothing else wants the room; criteria choose which end",
        "the larger pool preemptible: the smaller one's jobs wait {preempted}, {anew} jobs of the"
        " larger are begun anew; [`victims`](preemptible.md)",
        "whole",
    ),
    (
        "Partition Director",
        "nodes go from a batch system to a cloud and back, drained, by a time that is readable on"
        " the node",
        "[moves](moving-nodes.md) with a deadline, drained by the VCM,"
        " the time in the node's [metadata](metadata.md)",
        "whole",
    ),
    (
        "Multiverse",
        "100 jobs with a machine each: full clones 868 s, instant ones 581 s",
        "installed anew {fresh} ({fresh_ratio} of it), disk kept {kept} ({kept_ratio});"
        " one to the other {fresh_to_kept}, there 1.49",
        "whole; on stand-in nodes",
    ),
    (
        "SINP",
        "load of about 90 %, as low as 70 % with bad estimates (conservative backfilling)",
        "with places that do not move up {fixed_half}, {fixed_worst} with the worst; with those"
        " that do {worst} with the worst, {best} with exact ones",
        "whole; the lowest load is higher",
    ),
    (
        "",
        "gaps are filled by work that saves itself before its slot ends",
        "goodput {alone} without a filler that begins anew, {filled} with it; [saving"
        " itself](#gaps-filled) it loses next to nothing",
        "whole",
    ),
)


def rows(page: str) -> list[tuple[str, ...]]:
    """Return the table's rows, with the figures of the page. Raises KeyError."""
    figures = {name: cell(page, *place) for name, place in FIGURES.items()}
    return [
        (system, published, manual.linked(here.format_map(figures), manual.page("science")), state)
        for system, published, here, state in ROWS
    ]


def cell(page: str, heading: str, row: str, column: str) -> str:
    """Return a cell of the section's first table that has such a row and column, columns of equal
    heads by the first. Raises KeyError."""
    for table in _tables(page.partition(f"# {heading}\n")[2].partition("\n## ")[0]):
        heads, *lines = table
        for line in lines:
            if line[0] == row and column in heads:
                return line[heads.index(column)]
    raise KeyError(f"{heading}: {row}: {column}")


def _tables(text: str) -> Iterator[list[list[str]]]:
    """Yield the tables of a text, as rows of cells."""
    for block in map(str.strip, text.split("\n\n")):
        if block.startswith("|"):
            yield [[one.strip() for one in line[1:-1].split("|")] for line in block.splitlines()]
