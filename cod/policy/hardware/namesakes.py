"""The warning about volumes on a node's other disks that have the same names as volumes of the
installed disk."""

from __future__ import annotations

from collections.abc import Sequence

from cod.orders import Namesake
from cod.quantity import first_few

_MOST = 4  # names that the sentence tells


def sentence(found: Sequence[Namesake]) -> str:
    """Return the names that the installed disk shares with others, the danger, and the remedies."""
    volumes = [f"{each.kind} {_plain(each.name)} of {_plain(each.disk)}" for each in found]
    return (
        f"the installed system and another disk have the same names: {first_few(volumes, _MOST)}."
        " The system may start from the other disk, or mount the wrong volume. Give the volumes on"
        " that disk other names (tune2fs -L and -U, xfs_admin -L and -U, vgrename), remove the"
        " disk, or use an image with names of its own."
    )


def _plain(text: str) -> str:
    """Return the text of a disk on one line: an unprintable character becomes a space."""
    return "".join(c if c.isprintable() else " " for c in text)
