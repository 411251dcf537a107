"""Records of the software on nodes: templates, images, and uploads of images.

Attributes have the names of their columns; `store/tables` explains each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cod.model.described import About, FieldKind, FieldLevel, Undescribed

SITE = "site"
"""The group that `cod init` creates. As the owner of an added image or template, and as the prefix
of a name, it means the site."""


def owner_of(name: str) -> str:
    """Return the group whose image or template has that full name; '' for the site's, whose names
    have no slash."""
    return name.rpartition("/")[0]


def possible_names(name: str, group: str) -> tuple[str, ...]:
    """Return the full names that `name` may mean when `group` ('': the site) uses it, in the order
    in which they are tried.

    A bare name means the group's own image or template, or else the site's. A full name means that
    one thing if it is the group's. With the prefix `site` it means the site's thing, even if the
    group has one of the same name. A name of another group has no meaning, so that the answer is
    the same as for a name that does not exist.
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
    """A row of `images`. `size`: bytes when it is written to a disk; `stored`: bytes of its served
    form.

    content  'disk' (it has a partition table), 'partition' (it has none) or 'file' (a kernel or
             ramdisk, served as it is). While it is ingested: 'file', 'raw' (not examined), or ''
             (not known yet)
    digest   BLAKE2b-256 of the served form's manifest (of the file itself, if plain); the name of
             the served folder
    source   while it is ingested: the file on the server
    sector   bytes of the logical sectors of the disks that it is for, by its partition tables; 0:
             any will do
    table    partition table: 'gpt', 'mbr', 'full' (an MBR with four primary partitions) or 'none';
             '': not known
    ends_at  byte behind its last partition; 0: not known
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
    """An image for people. `group`: its owner's name; `used_by`: the templates that name it, if the
    caller may see them."""

    group: Annotated[str, About("Group", FieldKind.LINK, place="groups")] = ""
    used_by: Annotated[
        tuple[str, ...], About("Used by", about="templates that name it, as 'name@revision'")
    ] = ()


@dataclass(frozen=True, slots=True)
class Upload:
    """A row of `uploads`: a file that is being uploaded. `group`: the owner's name.

    offset  bytes that are known to be on the disk
    boot    id of the host's boot that has written the rest of the file: only during the same boot
            can the rest be trusted
    sha256  the digest that the file must have; '': not given
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
    """The outcome of ingesting an image file, which makes its served form (`cod.images.ingest`).
    Fields as in `Image`."""

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
