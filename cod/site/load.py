"""The site file: one annotated TOML file, validated as a whole, and turned into a `model.Site` and
`Settings`.

Errors name the key and say what to do. An unknown key is refused, with the nearest known key named:
a misspelt rule that is silently ignored is worse than no rule.
"""

from __future__ import annotations

import os
import re
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from cod import model
from cod.security.webcert import WebCertificate
from cod.site.file import FILE, SiteFile, keys
from cod.site.tables import ApiTable, ServerTable, address_and_port

LONGEST_SOCKET = 107  # bytes of sun_path, unix(7)
# The site file of `cod init` has every table; people add one of theirs at its end.
_TWICE = re.compile(r"Cannot declare \('(\w+)',\) twice \((.*)\)")


class ConfigError(Exception):
    """The site file cannot be used. `problems` are sentences, each beginning with the key that it
    is about."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        super().__init__("\n".join(f"{path}: {problem}" for problem in problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the server itself, in addition to the `model.Site` that flows see: the tables
    `server` and `api` of the site file at `path`. Values that are left out are taken from the
    host."""

    path: Path
    server: ServerTable
    api: ApiTable

    @property
    def name(self) -> str:
        """Return the server's name among those that share its database."""
        return self.server.name

    @property
    def data(self) -> Path:
        """Return the folder of all of COD's data."""
        return self.server.data_dir

    @property
    def database(self) -> str:
        """Return the URL of the database."""
        return self.server.database

    @property
    def listen(self) -> tuple[tuple[str, int], ...]:
        """Return the (address, port) pairs at which the portal and the REST API listen over TCP.
        The UNIX socket is always there."""
        return tuple(address_and_port(pair) for pair in self.api.listen)

    @property
    def names(self) -> tuple[str, ...]:
        """Return host names of the portal and the API. The first is used in links."""
        return self.api.names

    @property
    def certificate(self) -> WebCertificate | None:
        """Return the site's own certificate of the portal; None: COD makes one."""
        own, key = self.api.certificate, self.api.key
        return WebCertificate(Path(own), Path(key)) if own and key else None

    @property
    def boot(self) -> Path:
        """Return the root of the files that are served by TFTP and at `/files/…`: loaders,
        `trampoline/vmlinuz`, `trampoline/ramdisk`."""
        return self.data / "boot"

    @property
    def images(self) -> Path:
        """Return the folder of the served images, which are named by digest."""
        return self.data / "images"

    @property
    def incoming(self) -> Path:
        """Return the folder of uploaded files that have yet to be taken in."""
        return self.data / "incoming"

    @property
    def consoles(self) -> Path:
        """Return the folder of the nodes' console output, which has a folder for each node."""
        return self.data / "consoles"

    @property
    def memory(self) -> Path:
        """Return the file in which this server remembers how far its database had come."""
        return self.data / "manager" / f"{quote(self.name, safe='')}.seen"

    @property
    def webhook_key(self) -> Path:
        """Return the file of the secret from which webhooks' keys are derived. Servers that share a
        database share the secret."""
        return self.data / "webhook.key"

    @property
    def authority(self) -> Path:
        """Return the folder of the site's certificate authority for its VCMs. Servers that share a
        database share the authority."""
        return self.data / "ca"

    @property
    def web(self) -> Path:
        """Return the folder of the portal's certificate that COD has made, and its key."""
        return self.data / "web"

    @property
    def run(self) -> Path:
        """Return the folder of sockets and of the metrics of running processes; nothing in it has
        to survive a restart."""
        return self.data / "run"

    @property
    def socket(self) -> Path:
        """Return the path of the REST API's UNIX socket, for the local administrator."""
        return self.run / "api.sock"

    def lock(self, part: str) -> Path:
        """Return the lock file of a part of this server. The process that runs the part holds the
        lock."""
        return self.run / f"{quote(self.name, safe='')}.{part}.lock"

    @property
    def signer(self) -> Path:
        """Return the socket at which the part edge signs certificates of VCMs for other parts."""
        return self.run / "signer.sock"


# ---------------------------------------------------------------- reading


def load(path: Path) -> tuple[model.Site, Settings]:
    """Read and validate the site file. Raises `ConfigError`."""
    return site(file := read(path)), settings(file, path)


def read(path: Path) -> SiteFile:
    """Return the tables of the site file. Raises `ConfigError`."""
    return checked(tables(path), path)


def tables(path: Path) -> dict[str, Any]:
    """Return the parsed TOML of the site file, unchecked. Raises `ConfigError`."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        sentence = f"cannot be read ({error.strerror}); `cod init` writes one, --site names another"
        raise ConfigError(path, [sentence]) from None
    except UnicodeDecodeError:
        raise ConfigError(path, ["should be UTF-8 text"]) from None
    return _toml(text, path)


def parse(text: str, path: Path) -> SiteFile:
    """Return `text` as a site file; `path` is for messages. Raises `ConfigError`."""
    return checked(_toml(text, path), path)


def _toml(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        twice = _TWICE.fullmatch(str(error))
        raise ConfigError(
            path,
            [
                f"has [{twice[1]}] twice ({twice[2]}): put the keys of both into one"
                if twice
                else f"is not TOML: {error}"
            ],
        ) from None


def checked(tables: Mapping[str, Any], path: Path) -> SiteFile:
    """Return the tables of a site file, checked; `path` is for messages. Raises `ConfigError`."""
    try:
        return FILE.validate_python(tables)
    except ValidationError as error:
        found = error.errors(include_url=False)
        raise ConfigError(path, [line for each in found for line in _sentences(each)]) from None


def _sentences(error: Any) -> list[str]:
    """Return a sentence for one of a ValidationError's `errors`; several for contradictions between
    tables."""
    if not error["loc"]:
        return model.field_error(error).split("\n")
    return [_sentence(error)]


def _sentence(error: Any) -> str:
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "unexpected_keyword_argument":
        table: Any = SiteFile
        for part in error["loc"][:-1]:
            if isinstance(part, str):
                table = next(each.table for each in keys(table) if each.name == part)
        known = [each.name for each in keys(table)]
        return f"{key}: {model.unknown_key(str(error['loc'][-1]), known)}"
    if error["type"] == "missing":
        return f"{key}: is missing; give it a value"
    if error["type"] == "value_error":
        return f"{key}: {model.field_error(error)}"
    return f"{key}: {model.field_error(error)}, not {error['input']!r}"


def settings(file: SiteFile, path: Path) -> Settings:
    """Return the server's own settings in a site file that is, or will be, at `path`. Raises
    `ConfigError`."""
    server = replace(
        file.server,
        name=file.server.name or socket.gethostname()[:64],
        database=file.server.database or f"sqlite:///{file.server.data_dir.absolute()}/cod.db",
    )
    names = file.api.names or (socket.gethostname().lower(),)
    made = Settings(path.absolute(), server, replace(file.api, names=names))
    if len(os.fsencode(made.signer)) > LONGEST_SOCKET:
        raise ConfigError(
            path, [f"server.data_dir: {made.signer} is too long for a UNIX socket; choose another"]
        )
    return made


def site(file: SiteFile) -> model.Site:
    """Return the part of the site file that flows may know."""
    signin = model.SignInRules(
        **_keys(file.signin, url=file.signin.url or _portal(file.api)),
        named=bool(file.signin.url or file.api.names),
        ldap=replace(file.ldap, groups=file.ldap_group),
        oidc=file.oidc,
    )
    where = file.accounts.home.removesuffix("/{name}")
    return model.Site(
        name=file.name,
        domain=file.domain,
        subnets=tuple(
            replace(each, dns=each.dns or each.servers if file.dns.port == 53 else each.dns)
            for each in file.subnet
        ),
        boot=file.boot,
        nmp=file.nmp,
        dns=file.dns,
        isolation=file.isolation and replace(file.isolation, hosts=file.subnet[0].servers),
        policy=file.policy,
        energy=file.energy,
        types=file.types,
        images=file.images,
        burnin=file.burnin,
        consoles=file.console,
        notices=file.notices,
        mail=file.smtp,
        signin=signin,
        posix=file.accounts,
        groups=file.groups,
        volumes=model.VolumeRules(**_keys(file.volumes), home_mount=where),
        accounts=file.account,
        power=file.power,
        keep=file.keep,
        switches=file.switch,
        fileservers=file.fileserver,
        mirrors=file.mirror,
        kerberos=file.kerberos,
    )


def _keys(table: Any, **others: Any) -> dict[str, Any]:
    """Return the values of a table, with those in `others` replaced."""
    return {field.name: getattr(table, field.name) for field in fields(table)} | others


def _portal(api: ApiTable) -> str:
    """Return the URL at which browsers reach the portal, guessed from the host's name and the port;
    '' where the portal does not listen."""
    if not api.listen:
        return ""
    name, port = (
        (api.names or (socket.gethostname().lower(),))[0],
        address_and_port(api.listen[0])[1],
    )
    return f"https://{name}" + ("" if api.plain or port == 443 else f":{port}")
