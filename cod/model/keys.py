"""Types of values in the site file: allowed values and their conversion. Standard library only.

`cod.site` lets pydantic read the tables of the file into their records. The metadata of a record's
field are arguments of pydantic's `Field`, and a type defines its allowed values by
`__get_pydantic_core_schema__`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, ip_network
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, TypeVar, cast

from cod.model.names import DNS_LABEL, DNS_NAME

T = TypeVar("T")
DAY = 86400.0
LABEL = f"^{DNS_LABEL}$"
DOMAIN = f"^{DNS_NAME}$"


class SiteTable:
    """A table of the site file. Unknown keys are refused."""

    __slots__ = ()
    __pydantic_config__: ClassVar = {"extra": "forbid"}


def key_about(description: str, **limits: Any) -> dict[str, Any]:
    """Return the metadata of a key: its description, and its limits as arguments of pydantic's
    `Field`. Three more are possible: `unit`, the unit of its number, if its type does not tell it;
    `fixed`, why it cannot be changed while the servers run, although other keys of its table can;
    `secret`, that its value is never shown.
    """
    return {"description": description, **limits}


def site_key(default: T, description: str, **limits: Any) -> T:
    """Return the field of a key that may be left out."""
    about = key_about(description, **limits)
    if isinstance(default, dict):
        made: Any = field(default_factory=default.copy, metadata=about)
        return cast(T, made)
    return field(default=default, metadata=about)


def needed(description: str, **limits: Any) -> str:
    """Return the field of a required text that comes after keys that may be left out. A dataclass
    needs a default there: it is '', which is refused."""
    return site_key("", description, min_length=1, **limits)


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """The bounds of a type's values, as arguments of pydantic's `Field`."""

    limits: dict[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, accepted: Callable[[Any], Any]) -> Any:
        """Return the schema of what is accepted."""
        return {**accepted(source), **self.limits}


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """The conversion of a value when the file is read. `read` is called after pydantic has checked
    the value, or before, if `first`. It raises `ValueError` with a message for people."""

    read: Callable[[Any], Any]
    first: bool = False

    def __get_pydantic_core_schema__(self, source: Any, accepted: Callable[[Any], Any]) -> Any:
        """Return the schema of what is accepted."""
        return {
            "type": "function-before" if self.first else "function-after",
            "function": {"type": "no-info", "function": self.read},
            "schema": accepted(source),
        }


@dataclass(frozen=True, slots=True)
class Unit:
    """The mark of a number's unit."""

    name: str


class InDays(Read):
    """The conversion of days in the file to seconds in the program."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(lambda days: days * DAY)


def _path(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError("should be an absolute path")
    return str(PurePosixPath(text))


def _file_name(name: str) -> str:
    if name.startswith("/") or ".." in PurePosixPath(name).parts:
        raise ValueError("should be a file name below the boot root, without '..'")
    return name


def _address(text: str) -> str:
    try:
        return str(IPv4Address(text))
    except ValueError:
        raise ValueError(f"is not a valid IPv4 address, not {text!r}") from None


def _network(text: str) -> str:
    try:
        return str(IPv4Network(text))
    except ValueError:
        raise ValueError(f"is not a valid IPv4 network, not {text!r}") from None


def _any_network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError:
        raise ValueError(f"is not a valid network, not {text!r}") from None


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


_FINITE = {"le": 4_000_000_000, "allow_inf_nan": False, "strict": True}
"""DHCP has 32 bits for seconds. Strict: true is not one second."""

Port = Annotated[int, Limits({"ge": 1, "le": 65535})]
Positive = Annotated[float, Limits({"gt": 0, **_FINITE})]
NotNegative = Annotated[float, Limits({"ge": 0, **_FINITE})]
PositiveSeconds = Annotated[Positive, Unit("seconds")]
NotNegativeSeconds = Annotated[NotNegative, Unit("seconds")]
PositiveDays = Annotated[Positive, InDays(), Unit("days")]
NotNegativeDays = Annotated[NotNegative, InDays(), Unit("days")]
Priority = Annotated[int, Limits({"ge": -1_000_000, "le": 1_000_000})]  # as a group may have
Mark = Annotated[int, Limits({"ge": 0, "le": 1_000_000, "strict": True})]
Address = Annotated[str, Read(_address)]
Network = Annotated[str, Read(_network)]
AnyNetwork = Annotated[str, Read(_any_network)]
Pool = tuple[Address, Address]
HostName = Annotated[str, Limits({"pattern": DOMAIN, "max_length": 253})]
FileName = Annotated[str, Limits({"min_length": 1}), Read(_file_name)]
ABSOLUTE = Read(_path)
"""The mark of a file that the site file names. `cod.site.ownership` has the parts that read it."""
AbsolutePath = Annotated[str, ABSOLUTE]
Secondary = Annotated[tuple[str, int], Read(_secondary, first=True)]
NameServer = Annotated[str, Limits({"max_length": 253}), Read(_name_server)]
