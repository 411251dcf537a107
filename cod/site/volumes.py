"""The tables of the site file about file servers and the volumes on them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from cod.policy import volumes as policy
from cod.site.values import LABEL, AbsolutePath, HostName, NotNegative, Table

_PLAIN = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9._-]*)+")
_SSH = r"^$|^[a-z_][a-z0-9._-]{0,31}@[A-Za-z0-9][A-Za-z0-9.-]{0,252}(:[0-9]{1,5})?$"


def _plain(path: Path) -> Path:
    """Refuse what a file of exports would have to quote."""
    if not _PLAIN.fullmatch(str(path)) or ".." in path.parts:
        raise ValueError("should be an absolute path of letters, digits, '.', '_' and '-', below /")
    return path


class VolumesTable(Table):
    """What groups may keep on file servers (docs/volumes.md). Re-read on SIGHUP."""

    quota: int | None = Field(
        None,
        ge=0,
        description=(
            "bytes that a group's volumes may have together, where the group "
            "says nothing; not set: no limit"
        ),
    )
    grace: NotNegative = Field(
        7.0,
        description="days for which a deleted volume is kept, so that its owners can restore it",
    )
    homes: bool = Field(
        True,
        description=(
            "vclusters mount home directories from their group's home volume, unless "
            "they are requested without; home in [accounts] ends in /{name} then"
        ),
    )
    home_size: int = Field(
        50 * 2**30, ge=policy.SMALLEST, description="bytes of a group's home volume"
    )


class FileServerTable(Table):
    """A file server; new volumes are made on the first (docs/volumes.md). Repeat for more. Re-read
    on SIGHUP."""

    name: str = Field(pattern=LABEL, description="its name, a DNS label; volumes remember it")
    driver: Literal["ganesha", "kernel"] = Field(
        description=(
            "ganesha (NFS-Ganesha, by D-Bus) or kernel (the kernel's NFS server, by exportfs)"
        )
    )
    address: HostName = Field(description="address or name by which nodes mount its volumes")
    root: Annotated[Path, AfterValidator(_plain)] = Field(
        description="directory on it in which volumes are made; it must exist"
    )
    ssh: str = Field(
        "",
        pattern=_SSH,
        description=(
            "USER@HOST or USER@HOST:PORT that COD signs in as, with the rights "
            "of root; empty: the file server is this host"
        ),
    )
    ssh_key: AbsolutePath | None = Field(
        None, description="file of the private key to sign in with"
    )
    known_hosts: AbsolutePath | None = Field(
        None, description="file with its host key, in OpenSSH's form"
    )
    squash: Literal["root", "all", "none"] = Field(
        "root",
        description=(
            "whose ids become nobody's: root's, all, or "
            "none: then root on a node is root in its volumes"
        ),
    )
    exports: Annotated[Path, AfterValidator(_plain)] | None = Field(
        None,
        description=(
            "directory on it of the files that describe its exports; not set: /etc/ganesha/cod.d,"
            " or /etc/exports.d"
        ),
    )

    @model_validator(mode="after")
    def _coherent(self) -> FileServerTable:
        if self.ssh and (self.ssh_key is None or self.known_hosts is None):
            raise ValueError("ssh_key and known_hosts should be set where ssh is")
        return self
