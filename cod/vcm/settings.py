"""The configuration file of a VCM (TOML), with the keys of all VCMs. Each pool adds tables of its
own.

File names are relative to the file itself, so that the folder that `cod vcm enroll` writes can be
moved anywhere.
"""

from __future__ import annotations

import json
import tomllib
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from cod.model import DNS_LABEL, field_error, unknown_key
from cod.wire.nmp import xml
from cod.wire.nmp.bodies import RequestNodes, Wanted
from cod.wire.nmp.frames import Fault, Message


def _place(text: str) -> str:
    address, _, port = text.rpartition(":")
    try:
        IPv4Address(address)
    except ValueError:
        raise ValueError(f"{text!r} is not ADDRESS:PORT") from None
    if not (port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"{port!r} is no port")
    return text


def _requirements(text: str) -> str:
    """Check requirements as COD does, before they are sent for the first time."""
    if text:
        try:
            body = RequestNodes("key", (Wanted(1, requires=text),))
            xml.read(Message("request-nodes", "1", xml.write(body)))
        except SyntaxError as error:
            raise ValueError(f"is not XML: {error.msg}") from None
        except Fault as fault:
            raise ValueError(fault.sentence) from None
    return text


Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Server = Annotated[str, AfterValidator(_place)]
Requirements = Annotated[str, AfterValidator(_requirements)]


class Table(BaseModel):
    """A table of the file. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Settings(Table):
    """Settings of every VCM."""

    vcluster: str = Field(pattern=f"^{DNS_LABEL}$", description="the virtual cluster's name")
    servers: tuple[Server, ...] = Field(
        min_length=1, description="ADDRESS:PORT of the site's servers, tried in turn"
    )
    certificate: str = Field(default="vcm.crt", description="the VCM's certificate")
    key: str = Field(default="vcm.key", description="the certificate's key")
    authority: str = Field(default="ca.crt", description="the site's authority")
    tls: bool = Field(
        default=True, description="false: plain TCP, where the site knows VCMs by their addresses"
    )
    invitation: str = Field(
        default="",
        description="file that the VCM trades for its certificate, on a node of its cluster",
    )
    more: str = Field(
        default="",
        description="file with further keys, if it exists; its keys override those of this file",
    )
    state: str = Field(default="state.json", description="the VCM's memory")
    interval: Seconds = Field(default=15.0, description="seconds between looks at the pool")
    template: str = Field(
        default="", description="template of requested nodes; empty: that of the virtual cluster"
    )
    requires: Requirements = Field(
        default="",
        description="requirements of requested nodes (XML); empty: those of the virtual cluster",
    )
    extend: float = Field(
        default=0.0,
        ge=0,
        le=1e9,
        description="seconds by which the VCM extends a lease before its end; 0: it may end",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="debug, info, warning or error"
    )
    metrics: Annotated[str, AfterValidator(lambda text: text and _place(text))] = Field(
        default="", description="ADDRESS:PORT for Prometheus; empty: none"
    )


class BadSettings(Exception):
    """The file cannot be used; the text says what to change."""


T = TypeVar("T", bound=Settings)


def load(path: Path, kind: type[T]) -> T:
    """Return the settings in a file, and in the file that it names as `more`. Raises `BadSettings`."""
    values = _values(path)
    more = values.get("more")
    if isinstance(more, str) and more and (path.parent / more).exists():
        values |= _values(path.parent / more)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise BadSettings(
            "\n".join(_sentence(path, kind, each) for each in error.errors(include_url=False))
        ) from None


def _values(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSettings(
            f"{path}: cannot be read ({error.strerror}); `cod vcm enroll` writes one"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSettings(f"{path}: is not TOML: {error}") from None


def reference(table: type[Table]) -> str:
    """Return the keys of a table as a Markdown table, without inherited keys and without keys that
    open a table of their own."""
    lines = ["| Key | Default | Meaning |", "|---|---|---|"]
    for key, field in table.model_fields.items():
        if key not in table.__annotations__ or (
            isinstance(field.annotation, type) and issubclass(field.annotation, Table)
        ):
            continue
        default = "required" if field.is_required() else f"`{json.dumps(field.default)}`"
        lines.append(f"| `{key}` | {default} | {field.description} |")
    return "\n".join(lines)


def _sentence(path: Path, table: Any, error: Any) -> str:
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        for part in error["loc"][:-1]:
            if isinstance(part, str):
                kind = table.model_fields[part].annotation
                table = next(iter(get_args(kind)), kind)  # a table, or a list of tables
        return f"{path}: {key}: {unknown_key(str(error['loc'][-1]), table.model_fields)}"
    return f"{path}: {key}: {field_error(error)}"
