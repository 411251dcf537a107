"""Comparison of the installation on a node's disk with the database, for a database that was
restored from a backup. Pure.

Installing a node marks its disk: the NoCloud seed's instance id is the id of the order,
`NODE.GENERATION`, and its host name ends in the vcluster's name. A mark that is newer than the
newest installation in the database shows that the database has lost one. Content without a mark may
be the system of a template without a seed. That is doubtful, so such content is not erased.
"""

from __future__ import annotations

import re

from cod.states import StoryVerdict

BLANK, OTHER = "blank", "other"
_MARK = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})(?: ([A-Za-z0-9.-]{1,253}))?")


def judge(node_id: int, known: int, marks: str) -> tuple[StoryVerdict, str]:
    """Return whether an agent's report about its disks agrees with the database, and the report as
    a phrase for people.

    known  the newest generation of an installation of the node that the database can know of
    marks  the report: 'blank', 'other', or the mark of the newest installation, NODE.GENERATION
           HOSTNAME
    """
    if marks == BLANK:
        return StoryVerdict.AGREES, "its disks are blank"
    mark = _MARK.fullmatch(marks)
    if mark is None:
        return StoryVerdict.DIFFERS, "its disks hold data that no installation by COD has marked"
    owner, generation, name = int(mark[1]), int(mark[2]), mark[3]
    about = f"its disk was installed as {name}, " if name else "its disk was installed in "
    if owner != node_id:
        return StoryVerdict.DIFFERS, f"{about}generation {generation} of another node"
    agrees = generation <= known
    verdict = StoryVerdict.AGREES if agrees else StoryVerdict.DIFFERS
    return verdict, f"{about}generation {generation}"


def both(state: str, holder: str | None, known: int, mark: str) -> str:
    """Return a sentence about a node for which the database and the machine disagree."""
    whose = f"held by {holder}" if holder else "free"
    database = f"the database says {whose}, {state}, installed in generation {known} at the latest"
    return f"{database}; the machine says: {mark}"


def is_mark_of(node_id: int, generation: int | None, mark: str) -> bool:
    """Return whether `mark` is the mark of the node's installation in that generation."""
    return generation is not None and mark.partition(" ")[0] == f"{node_id}.{generation}"
