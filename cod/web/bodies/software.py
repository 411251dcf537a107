"""Bodies about images and templates."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cod.web.bodies.base import FULL, Body, OwnName, Paged, Part, Reply, Sha256

RAW = "take it in although it holds neither a partition table nor a file system that is known here"


class ImageAdd(Body):
    """A file on the server to take in as an image; only the local administrator may name one."""

    name: OwnName
    path: str = Field(min_length=1, max_length=4096, pattern="^/")
    sha256: Sha256 | None = None
    plain: bool = Field(default=False, description="serve it as it is: a kernel or ramdisk")
    raw: bool = Field(default=False, description=RAW)
    group: str = Field(default="", max_length=63, description="whose it is; empty: the site's")


class UploadCreate(Body):
    """A file that is to be sent piece by piece and become an image."""

    name: OwnName
    size: int = Field(ge=0, le=2**63 - 1, description="bytes")
    group: str = Field(default="", max_length=63, description="whose it is; empty: the site's")
    sha256: Sha256 | None = None
    plain: bool = Field(default=False, description="serve it as it is: a kernel or ramdisk")
    raw: bool = Field(default=False, description=RAW)


class UploadReply(Reply):
    """A file on its way in: `offset` of its `size` bytes are on the server's disk. It is given up at `expires_at`
    unless more of it comes."""

    id: str
    name: str
    group: str
    size: int
    offset: int
    sha256: str
    plain: bool
    raw: bool
    actor: str
    created_at: float
    expires_at: float


class UploadQuery(Paged):
    """Which uploads to list."""

    sort: Literal["name", "-name", "created_at", "-created_at", "expires_at", "-expires_at"] = "name"


class UploadList(Part):
    """Uploads under way."""

    items: list[UploadReply]


class ImageReply(Reply):
    """An image. `name` is its full name: 'physics/debian', or 'debian' of the site's. `size` is of the disk, `used` of
    its used chunks, `stored` of the served form; `sector` is the bytes of the logical sectors of the disks that it is
    for, 0 if any will do; `used_by` are templates that name it, as 'name@revision', as far as one may see them."""

    name: str
    group: str
    state: Literal["ingesting", "ready", "failed"]
    format: str
    content: str
    size: int
    used: int
    stored: int
    sha256: str
    digest: str
    sector: int
    created_at: float
    reason: str
    used_by: list[str]


class ImageQuery(Paged):
    """Which images to list."""

    sort: Literal["name", "-name", "created_at", "-created_at", "stored", "-stored", "state", "-state", "group",
                  "-group"] = "name"


class ImageList(Part):
    """Images."""

    items: list[ImageReply]


class Verified(Reply):
    """What reading an image again found: `bad` names damaged chunks."""

    ok: bool
    chunks: int
    bad: list[str]


class TemplateDocument(Body):
    """A template's XML."""

    document: Annotated[str, Field(min_length=1, max_length=2**18)]
    group: str = Field(default="", max_length=63, description="whose it is; empty: the site's")


class TemplateQuery(Paged):
    """Which templates to list."""

    sort: Literal["name", "-name", "created_at", "-created_at"] = "name"

    name: str = Field(default="", max_length=FULL, description="all revisions of this one, not the newest of each")


class TemplateReply(Reply):
    """A revision of a template."""

    name: str
    revision: int
    digest: str
    created_at: float
    retired_at: float | None


class TemplateInFull(TemplateReply):
    """A revision of a template with its XML."""

    document: str


class TemplateList(Part):
    """Templates."""

    items: list[TemplateReply]


class TemplateFault(Reply):
    """One fault of a template's document."""

    line: int
    sentence: str


class TemplateCheck(Reply):
    """What is wrong with a template's document; nothing, if `ok`."""

    ok: bool
    faults: list[TemplateFault]
