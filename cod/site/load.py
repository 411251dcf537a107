"""The site file: one annotated TOML file, validated whole, made into a `model.Site` and `Settings`.

Errors name the key and say what to do. A key that is not known is refused, with the nearest known
one named: a misspelt rule that is silently ignored is worse than no rule.
"""

from __future__ import annotations

import os
import socket
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from cod import model
from cod.security.webcert import WebCertificate
from cod.site.file import SiteFile
from cod.site.isolation import IsolationTable
from cod.site.subnets import SubnetTable
from cod.site.switches import SwitchTable
from cod.site.tables import ApiTable
from cod.site.values import SMTP_PORTS, address_and_port
from cod.site.volumes import FileServerTable

LONGEST_SOCKET = 107  # bytes of sun_path, unix(7)


class ConfigError(Exception):
    """The site file cannot be used. `problems` are sentences, each beginning with the key it is
    about."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        super().__init__("\n".join(f"{path}: {problem}" for problem in problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Settings:
    """What the server itself needs to know, beside the `model.Site` that flows see.

    name     this server among those that share its database; the same after a restart
    keep_history  seconds for which what happened is kept; 0: for ever
    listen   (address, port) pairs of the portal and the REST API over TCP; the UNIX socket is
             always there
    names    host names of the portal and the API, the first of which goes into links
    certificate  the site's own, of the portal; None: COD makes one
    plain    without TLS
    """

    path: Path
    name: str
    data: Path
    database: str
    listen: tuple[tuple[str, int], ...]
    log_level: str
    log_format: str
    upload_limit: int
    keep_history: float = 365 * 86400.0
    names: tuple[str, ...] = ()
    certificate: WebCertificate | None = None
    plain: bool = False

    @property
    def boot(self) -> Path:
        """Root of what TFTP and `/files/…` serve: loaders, `trampoline/vmlinuz`,
        `trampoline/ramdisk`."""
        return self.data / "boot"

    @property
    def images(self) -> Path:
        """Folders of the served images, by digest."""
        return self.data / "images"

    @property
    def incoming(self) -> Path:
        """Uploaded files that are yet to be taken in."""
        return self.data / "incoming"

    @property
    def consoles(self) -> Path:
        """Return the folder of what nodes wrote on their consoles, with a folder for each."""
        return self.data / "consoles"

    @property
    def webhook_key(self) -> Path:
        """The secret that webhooks' keys are derived from; servers that share a database share it,
        too."""
        return self.data / "webhook.key"

    @property
    def authority(self) -> Path:
        """The site's certificate authority for its VCMs; servers that share a database share it,
        too."""
        return self.data / "ca"

    @property
    def web(self) -> Path:
        """The certificate of the portal that COD has made, and its key."""
        return self.data / "web"

    @property
    def run(self) -> Path:
        """Sockets and the metrics of running processes; nothing that must survive a restart."""
        return self.data / "run"

    @property
    def socket(self) -> Path:
        """The REST API's UNIX socket, for the local administrator."""
        return self.run / "api.sock"

    def lock(self, part: str) -> Path:
        """Return the file that a process which runs that part of this server holds a lock of."""
        return self.run / f"{quote(self.name, safe='')}.{part}.lock"

    @property
    def signer(self) -> Path:
        """Return the socket at which the part edge signs certificates of VCMs for other parts."""
        return self.run / "signer.sock"


# ---------------------------------------------------------------- reading


def load(path: Path) -> tuple[model.Site, Settings]:
    """Read and validate the site file. Raises `ConfigError`."""
    return _site(file := read(path)), settings(file, path)


def read(path: Path) -> SiteFile:
    """Return the site file as its tables. Raises `ConfigError`."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        sentence = f"cannot be read ({error.strerror}); `cod init` writes one, --site names another"
        raise ConfigError(path, [sentence]) from None
    except UnicodeDecodeError:
        raise ConfigError(path, ["should be UTF-8 text"]) from None
    return parse(text, path)


def parse(text: str, path: Path) -> SiteFile:
    """Return `text` as a site file; `path` is for messages. Raises `ConfigError`."""
    try:
        return SiteFile.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(path, [f"is not TOML: {error}"]) from None
    except ValidationError as error:
        raise ConfigError(
            path, [_sentence(each) for each in error.errors(include_url=False)]
        ) from None


def _sentence(error: Any) -> str:
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        table: Any = SiteFile
        for part in error["loc"][:-1]:
            if isinstance(part, str):
                table = _table_of(table.model_fields[part].annotation)
        return f"{key}: {model.unknown_key(str(error['loc'][-1]), table.model_fields)}"
    if error["type"] == "missing":
        return f"{key}: is missing; give it a value"
    if error["type"] == "value_error":
        return f"{key}: {model.field_error(error)}" if key else model.field_error(error)
    return f"{key}: {model.field_error(error)}, not {error['input']!r}"


def _table_of(annotation: Any) -> Any:
    """Return the table class in an annotation such as `PolicyTable` or `tuple[SubnetTable,
    ...]`."""
    args = getattr(annotation, "__args__", ())
    return args[0] if args else annotation


def settings(file: SiteFile, path: Path) -> Settings:
    """Return what the server itself needs of a site file that is, or will be, at `path`. Raises
    `ConfigError`."""
    server, api = file.server, file.api
    made = Settings(
        path=path.absolute(),
        name=server.name or socket.gethostname()[:64],
        data=server.data_dir,
        database=server.database or f"sqlite:///{server.data_dir.absolute()}/cod.db",
        listen=tuple(address_and_port(pair) for pair in file.api.listen),
        log_level=server.log_level,
        log_format=server.log_format,
        upload_limit=file.api.upload_limit,
        keep_history=server.keep_history * 86400.0,
        names=file.api.names or (socket.gethostname().lower(),),
        certificate=(
            WebCertificate(api.certificate, api.key) if api.certificate and api.key else None
        ),
        plain=file.api.plain,
    )
    if len(os.fsencode(made.signer)) > LONGEST_SOCKET:
        raise ConfigError(
            path, [f"server.data_dir: {made.signer} is too long for a UNIX socket; choose another"]
        )
    return made


def _site(file: SiteFile) -> model.Site:
    mail = file.smtp.model_dump() | {
        "password_file": _path(file.smtp.password_file),
        "port": file.smtp.port or SMTP_PORTS[file.smtp.tls],
    }
    return model.Site(
        name=file.name,
        domain=file.domain,
        subnets=tuple(_subnet(each, file.dns.port == 53) for each in file.subnet),
        policy=model.Policy(**file.policy.model_dump()),
        nmp_port=file.nmp.port,
        nmp_plain_port=file.nmp.plain_port,
        nmp_keepalive=file.nmp.keepalive,
        isolation=_isolation(file.isolation),
        dns=model.Dns(
            file.dns.port,
            tuple(map(str, file.dns.forward)),
            file.dns.names,
            file.dns.external,
            file.dns.secondaries,
            file.dns.name_servers,
        ),
        energy=model.Energy(
            **file.energy.model_dump() | {"curve_file": _path(file.energy.curve_file)}
        ),
        types=model.TypeRules(**file.types.model_dump()),
        mail=model.Mail(**mail),
        images=model.ImageRules(
            file.images.quota,
            file.images.keep_uploads * 86400.0,
            file.images.open,
            file.images.largest,
            file.images.expansion,
            file.images.ingest_time,
            file.images.open_uploads,
            file.images.open_captures,
        ),
        notices=model.NoticeRules(
            file.notices.local_webhooks,
            _path(file.notices.ca_file),
            tuple(map(str, file.notices.closed_networks)),
        ),
        signin=_signin(file),
        consoles=model.ConsoleRules(
            **file.console.model_dump() | {"keep": file.console.keep * 86400.0}
        ),
        posix=model.PosixRules(**file.accounts.model_dump()),
        groups=model.GroupRules(
            **file.groups.model_dump()
            | {
                each: getattr(file.groups, each) or None
                for each in ("node_limit", "hours_limit", "max_lease")
            }
        ),
        burnin=model.BurninRules(
            **file.burnin.model_dump() | {"every": file.burnin.every * 86400.0}
        ),
        power=tuple(model.PowerRule(**each.model_dump()) for each in file.power),
        switches=tuple(_switch(each) for each in file.switch),
        keep=tuple(model.KeepRule(each.match, each.disk) for each in file.keep),
        accounts=tuple(
            model.Account(each.name, each.user, str(each.password_file), each.boot_nonce)
            for each in file.account
        ),
        fileservers=tuple(_fileserver(each) for each in file.fileserver),
        volumes=model.VolumeRules(
            file.volumes.quota,
            file.volumes.grace * 86400.0,
            file.volumes.homes,
            file.volumes.home_size,
            file.accounts.home.removesuffix("/{name}"),
        ),
        **file.boot.model_dump(),
    )


def _fileserver(table: FileServerTable) -> model.FileServer:
    own = table.model_dump(exclude={"root", "exports", "ssh_key", "known_hosts"})
    return model.FileServer(
        **own,
        root=str(table.root),
        exports=_path(table.exports) or "",
        ssh_key=_path(table.ssh_key),
        known_hosts=_path(table.known_hosts),
    )


def _signin(file: SiteFile) -> model.SignInRules:
    own_ca, password = _path(file.ldap.ca_file), _path(file.ldap.password_file)
    ldap = file.ldap.model_dump() | {"ca_file": own_ca, "password_file": password}
    oidc = file.oidc.model_dump() | {"secret_file": _path(file.oidc.secret_file)}
    own = file.signin.model_dump() | {
        "url": file.signin.url or _portal(file.api),
        "named": bool(file.signin.url or file.api.names),
    }
    return model.SignInRules(**own, ldap=model.Ldap(**ldap), oidc=model.Oidc(**oidc))


def _portal(api: ApiTable) -> str:
    """Return where browsers reach the portal, as far as that can be told; '' where it listens
    nowhere."""
    if not api.listen:
        return ""
    name, port = (
        (api.names or (socket.gethostname().lower(),))[0],
        address_and_port(api.listen[0])[1],
    )
    return f"https://{name}" + ("" if api.plain or port == 443 else f":{port}")


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _switch(table: SwitchTable) -> model.Switch:
    files = {name: _path(getattr(table, name)) for name in ("ca_file", "certificate", "key")}
    return model.Switch(**table.model_dump() | files | {"ports": tuple(table.ports.items())})


def _isolation(table: IsolationTable) -> model.Isolation | None:
    if table.vlans is None:
        return None
    return model.Isolation(
        vlans=table.vlans,
        networks=str(table.networks),
        default_size=table.default_size,
        largest_size=table.largest_size,
        interface=table.interface,
        server=None if table.server is None else str(table.server),
        router=table.router,
        by_default=table.by_default,
    )


def _subnet(table: SubnetTable, named: bool) -> model.Subnet:
    return model.Subnet(
        name=table.name,
        network=str(table.network),
        server=str(table.server),
        boot_pool=(str(table.boot_pool[0]), str(table.boot_pool[1])),
        block_pool=(str(table.block_pool[0]), str(table.block_pool[1])),
        block_size=table.block_size,
        router=None if table.router is None else str(table.router),
        interface=table.interface,
        relay=None if table.relay is None else str(table.relay),
        dns=tuple(map(str, table.dns)) or ((str(table.server),) if named else ()),
    )
