"""Rows about what nodes run: templates, images, and images on their way in.

Names of attributes are the columns' names; `store/tables.py` explains each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cod.model.described import About, FieldKind, FieldLevel, Undescribed

SITE = "site"
"""The group that `cod init` makes. As the owner of what somebody adds, and before a name, it stands
for the site."""


def owner_of(name: str) -> str:
    """Return the group whose image or template has that full name; '' for the site's, whose names
    have no slash."""
    return name.rpartition("/")[0]


def possible_names(name: str, group: str) -> tuple[str, ...]:
    """Return the full names that `name` may stand for in what belongs to `group` ('': the site),
    the best first.

    A bare name stands for the group's own thing, then for the site's. A full name stands for that
    one thing, if it is the group's; with the prefix `site` it stands for the site's, whatever the
    group has. Names of other groups stand for nothing, so that they are answered as names that
    nobody has.
    """
    owner, slash, own = name.rpartition("/")
    if not slash or owner == group == SITE:
        return (f"{group}/{own}", own) if group else (own,)
    if owner == SITE:
        return (own,)
    return (name,) if owner and owner == group else ()


@dataclass(frozen=True, slots=True)
class Template:
    """A row of `config_templates`: one revision of a configuration template. `document` is its
    XML."""

    id: Undescribed[int]
    name: Annotated[str, About("Template")]
    revision: Annotated[int, About("Revision", FieldKind.NUMBER)]
    group_id: Undescribed[int | None]
    document: Undescribed[str]
    digest: Annotated[str, About("Digest")]
    created_at: Annotated[float, About("Added", FieldKind.MOMENT)]
    retired_at: Annotated[float | None, About("Retired", FieldKind.MOMENT)]


@dataclass(frozen=True, slots=True)
class Image:
    """A row of `images`. `size` is of the image as written to a disk; `stored` of its served form.

    content  'disk' (it has a partition table), 'partition' (it has none) or 'file' (a kernel or
             ramdisk, served as is)
    digest   BLAKE2b-256 of the served form's manifest (of the file itself, if plain); names the
             folder that is served while ingesting: 'file', 'raw' (anything may be in it), or ''
             (not known yet)
    source   while ingesting: the file on the server that is taken in
    sector   bytes of the logical sectors of the disks that it is for, as its tables say; 0: any
             will do
    table    partition table: 'gpt', 'mbr', 'full' (an MBR with four primary partitions) or 'none';
             '' where it is not known
    ends_at  byte behind its last partition; 0 where that is not known
    """

    id: Undescribed[int]
    name: Annotated[str, About("Image", about="full name: physics/debian, or debian of the site's")]
    group_id: Undescribed[int | None]
    state: Annotated[str, About("State", FieldKind.STATE)]
    format: Annotated[str, About("Format")]
    size: Annotated[int, About("Size", FieldKind.SIZE, "of the disk")]
    used: Annotated[int, About("Used", FieldKind.SIZE, "of its used chunks")]
    stored: Annotated[int, About("Stored", FieldKind.SIZE, "of the served form")]
    sha256: Annotated[str, About("SHA-256", level=FieldLevel.DETAIL)]
    digest: Annotated[str, About("Digest", level=FieldLevel.DETAIL)]
    created_at: Annotated[float, About("Added", FieldKind.MOMENT)]
    reason: Annotated[str, About("Reason")]
    content: Annotated[str, About("Content", level=FieldLevel.WIDE)] = ""
    source: Undescribed[str] = ""
    sector: Annotated[
        int,
        About(
            "Sector",
            FieldKind.NUMBER,
            "bytes of the logical sectors of the disks that it is for, 0 if any will do",
            level=FieldLevel.WIDE,
        ),
    ] = 0
    table: Undescribed[str] = ""
    ends_at: Undescribed[int] = 0


@dataclass(frozen=True, slots=True)
class ImageView(Image):
    """An image for people. `group` is its owner's name; `used_by` are templates, as far as who asks
    may see them."""

    group: Annotated[str, About("Group", FieldKind.LINK, place="groups")] = ""
    used_by: Annotated[
        tuple[str, ...], About("Used by", about="templates that name it, as 'name@revision'")
    ] = ()


@dataclass(frozen=True, slots=True)
class Upload:
    """A row of `uploads`: a file on its way in. `group` is the owner's name.

    offset  bytes that are known to be on disk; beyond it the file is right while the host's boot is
            `boot`
    sha256  what it must be; '': nobody said
    """

    id: str
    name: str
    group_id: int | None
    size: int
    offset: int
    boot: str
    sha256: str
    plain: bool
    raw: bool
    actor: str
    created_at: float
    expires_at: float
    group: str = ""


@dataclass(frozen=True, slots=True)
class Ingested:
    """Outcome of turning an image file into its served form (`cod.images.ingest`); names as in
    `Image`."""

    format: str
    content: str
    size: int
    used: int
    stored: int
    sha256: str
    digest: str
    sector: int = 0
    table: str = ""
    ends_at: int = 0
