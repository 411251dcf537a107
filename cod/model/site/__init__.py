"""The site and its rules, as its administrator describes them in the site file. The records are the
tables of the file. The description of a key is written once, at its field."""

from __future__ import annotations

from dataclasses import dataclass, field

from cod.model.posix import PosixRules
from cod.model.site.kerberos import KerberosRules
from cod.model.site.network import Boot, Dns, ImageMirror, Isolation, Nmp, Subnet
from cod.model.site.rules import Energy, Policy
from cod.model.site.services import (
    Account,
    BurninRules,
    ConsoleRules,
    ImageRules,
    KeepRule,
    Mail,
    NoticeRules,
    PowerRule,
    TypeRules,
)
from cod.model.site.signin import GroupRules, SignInRules
from cod.model.switches import Switch
from cod.model.volumes import FileServer, VolumeRules


@dataclass(frozen=True, slots=True)
class Site:
    """All settings of the site, made from the site file by `cod.site.load`.

    domain     DNS suffix; a vcluster's subdomain is `<vcluster>.<domain>`
    isolation  networks for isolated vclusters; None: the site has no isolated vclusters
    authority  PEM certificate of the site's authority, for nodes; '': unknown
    """

    name: str
    domain: str
    subnets: tuple[Subnet, ...]
    policy: Policy = field(default_factory=Policy)
    boot: Boot = field(default_factory=Boot)
    nmp: Nmp = field(default_factory=Nmp)
    power: tuple[PowerRule, ...] = ()
    energy: Energy = field(default_factory=Energy)
    dns: Dns = field(default_factory=Dns)
    isolation: Isolation | None = None
    mail: Mail = field(default_factory=Mail)
    notices: NoticeRules = field(default_factory=NoticeRules)
    accounts: tuple[Account, ...] = ()
    types: TypeRules = field(default_factory=TypeRules)
    images: ImageRules = field(default_factory=ImageRules)
    keep: tuple[KeepRule, ...] = ()
    signin: SignInRules = field(default_factory=SignInRules)
    consoles: ConsoleRules = field(default_factory=ConsoleRules)
    switches: tuple[Switch, ...] = ()
    posix: PosixRules = field(default_factory=PosixRules)
    authority: str = ""
    fileservers: tuple[FileServer, ...] = ()
    volumes: VolumeRules = field(default_factory=VolumeRules)
    burnin: BurninRules = field(default_factory=BurninRules)
    groups: GroupRules = field(default_factory=GroupRules)
    mirrors: tuple[ImageMirror, ...] = ()
    kerberos: KerberosRules = field(default_factory=KerberosRules)

    @property
    def isolates(self) -> bool:
        """Return whether a new vcluster is isolated if its request does not say."""
        return self.isolation is not None and self.isolation.by_default


class SiteRef:
    """A reference to the site's present settings. Services keep it, and read `current` each time.
    SIGHUP replaces `current` as a whole, so that a flow never sees a mixture of old and new rules.
    """

    __slots__ = ("current",)

    def __init__(self, site: Site) -> None:
        self.current = site
