"""Comparison of the installation on a node's disk with the database, for a database that was
restored from a backup. Pure.

Installing a node marks its disk: the NoCloud seed's instance id is the id of the order,
`NODE.GENERATION`, its host name ends in the vcluster's name, and `cod-installation` names the
vcluster and the template. A mark that is newer than the newest installation in the database shows
that the database has lost one. Generations that were lost are given again, and so are ids of
vclusters and revisions of templates. A mark of a generation that the database knows must therefore
name what was installed in it: a vcluster by its id and the time when it was made, a template by its
digest. Content without a mark may be the system of a template without a seed. That is doubtful, so
such content is not erased.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from cod.model import InstallationRecord
from cod.states import NodeState, StoryVerdict

BLANK, OTHER = "blank", "other"
_MARK = re.compile(
    r"([0-9]{1,18})\.([0-9]{1,18})(?: ([A-Za-z0-9.-]{1,253})"
    r"(?: ([0-9]{1,18}\.[0-9]{1,18}) ([0-9a-f]{64}))?)?"
)
_NOTHING_KNOWN = InstallationRecord()


class Mark(NamedTuple):
    """The mark of an installation on a disk. `vcluster` and `template` are '' in seeds of earlier
    releases, and where an agent of an earlier release reports."""

    node_id: int
    generation: int
    name: str
    vcluster: str
    template: str


def read_mark(marks: str) -> Mark | None:
    """Return the mark in an agent's report; None if the report names none."""
    found = _MARK.fullmatch(marks)
    if found is None:
        return None
    return Mark(int(found[1]), int(found[2]), *(part or "" for part in found.groups()[2:]))


def installation(vcluster_id: int, created_at: float, digest: str) -> str:
    """Return the part of a mark that names the vcluster and the template of an installation."""
    return f"{_vcluster(vcluster_id, created_at)} {digest}"


def _vcluster(vcluster_id: int, created_at: float) -> str:
    return f"{vcluster_id}.{int(created_at)}"


def judge(
    node_id: int, known: int, marks: str, recorded: InstallationRecord = _NOTHING_KNOWN
) -> tuple[StoryVerdict, str]:
    """Return whether an agent's report about its disks agrees with the database, and the report as
    a phrase for people.

    known     the newest generation of an installation of the node that the database can know of
    marks     the report: 'blank', 'other', or the mark of the newest installation, NODE.GENERATION
              HOSTNAME, followed by `installation` where the seed tells that
    recorded  what the database knows of the mark's generation
    """
    if marks == BLANK:
        return StoryVerdict.AGREES, "its disks are blank"
    mark = read_mark(marks)
    if mark is None:
        return StoryVerdict.DIFFERS, "its disks hold data that no installation by COD has marked"
    about = (
        f"its disk was installed as {mark.name}, " if mark.name else "its disk was installed in "
    )
    if mark.node_id != node_id:
        return StoryVerdict.DIFFERS, f"{about}generation {mark.generation} of another node"
    about += f"generation {mark.generation}"
    if mark.generation > known:
        return StoryVerdict.DIFFERS, about
    contradiction = _contradiction(mark, recorded)
    if contradiction:
        return StoryVerdict.DIFFERS, f"{about}, {contradiction}"
    return StoryVerdict.AGREES, about


def _contradiction(mark: Mark, recorded: InstallationRecord) -> str:
    """Return in what a mark contradicts the record of its generation; '' in nothing."""
    state, vcluster_id, created_at, template, pending = recorded
    holder = None if vcluster_id is None else _vcluster(vcluster_id, created_at or 0.0)
    if state not in ("", NodeState.PRIME):
        return f"in which the node was in state {state}, and was not installed"
    if mark.vcluster and holder not in (None, mark.vcluster):
        return "for another vcluster than the one of that generation"
    if mark.template and not pending and template not in ("", mark.template):
        return f"from the template with the digest {mark.template[:12]}, and not {template[:12]}"
    return ""


def both(state: str, holder: str | None, known: int, mark: str) -> str:
    """Return a sentence about a node for which the database and the machine disagree."""
    whose = f"held by {holder}" if holder else "free"
    database = f"the database says {whose}, {state}, installed in generation {known} at the latest"
    return f"{database}; the machine says: {mark}"


def is_mark_of(marks: str, recorded: InstallationRecord) -> bool:
    """Return whether `marks`, which agree with the record of their generation, are those of the
    node's present installation, or of the cached disk that it runs."""
    mark = read_mark(marks)
    return mark is not None and recorded.template != "" and mark.template in ("", recorded.template)
