"""Kinds of values in the site file, with what each may be."""

from __future__ import annotations

import re
from difflib import get_close_matches
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from cod.model import DNS_LABEL, DNS_NAME
from cod.policy.hardware.attributes import ATTRIBUTES
from cod.policy.people.delivery import addresses

LABEL = f"^{DNS_LABEL}$"
DOMAIN = f"^{DNS_NAME}$"
SMTP_PORTS = {"none": 25, "starttls": 587, "tls": 465}
DIALECTS = ("sqlite", "mysql", "mariadb")

Port = Annotated[int, Field(ge=1, le=65535)]
# DHCP has 32 bits for seconds. Strict: true is not one second.
Positive = Annotated[float, Field(gt=0, le=4_000_000_000, allow_inf_nan=False, strict=True)]
NotNegative = Annotated[float, Field(ge=0, le=4_000_000_000, allow_inf_nan=False, strict=True)]
Priority = Annotated[int, Field(ge=-1_000_000, le=1_000_000)]  # as a group may have
Mark = Annotated[int, Field(ge=0, le=1_000_000, strict=True)]
Pool = tuple[IPv4Address, IPv4Address]
HostName = Annotated[str, Field(pattern=DOMAIN, max_length=253)]


class Table(BaseModel):
    """What all tables share: unknown keys are refused, values are kept as written."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _file_name(name: str) -> str:
    if name.startswith("/") or ".." in Path(name).parts:
        raise ValueError("should be a file name below the boot root, without '..'")
    return name


FileName = Annotated[str, Field(min_length=1), AfterValidator(_file_name)]


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("should be an absolute path")
    return path


def _mail_address(text: str) -> str:
    if text and len(addresses(text)) != 1:
        raise ValueError("should be one e-mail address such as cod@example.org")
    return text


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
MailAddress = Annotated[str, AfterValidator(_mail_address)]


def _attribute(path: str) -> str:
    if path not in ATTRIBUTES:
        near = get_close_matches(path, ATTRIBUTES, 1)
        raise ValueError(
            f"{path!r} is no attribute of a node" + (f"; did you mean {near[0]!r}?" if near else "")
        )
    return path


Attribute = Annotated[str, AfterValidator(_attribute)]


def _secondary(value: object) -> tuple[str, int]:
    address, colon, port = str(value).partition(":")
    if colon and not (port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{value!r} should be ADDRESS or ADDRESS:PORT, such as 192.0.2.53")
    return str(IPv4Address(address)), int(port or 53)


def _name_server(text: str) -> str:
    if text.replace(".", "").isdigit():
        return str(IPv4Address(text))
    if not re.fullmatch(DNS_NAME, text) or "." not in text:
        raise ValueError(f"{text!r} should be an IPv4 address or a full host name")
    return text


Secondary = Annotated[tuple[str, int], BeforeValidator(_secondary)]
NameServer = Annotated[str, Field(max_length=253), AfterValidator(_name_server)]


def address_and_port(pair: str) -> tuple[str, int]:
    """Split 'ADDRESS:PORT' ('[::1]:80' for IPv6). Raises ValueError with a sentence."""
    address, colon, port = pair.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) <= 65535 or not address:
        raise ValueError(f"{pair!r} should be ADDRESS:PORT, such as 127.0.0.1:8080")
    return address.strip("[]"), int(port)
