"""The whole site file, and its rules that involve several tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from ipaddress import ip_address, ip_network
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import AfterValidator, TypeAdapter, WrapValidator

from cod.model import (
    Account,
    Boot,
    BurninRules,
    ConsoleRules,
    Dns,
    Energy,
    FileServer,
    GroupRules,
    ImageMirror,
    ImageRules,
    Isolation,
    KeepRule,
    KerberosRules,
    Ldap,
    LdapGroup,
    Mail,
    Nmp,
    NoticeRules,
    Oidc,
    Policy,
    PosixRules,
    PowerRule,
    Refused,
    SignInKeys,
    Subnet,
    Switch,
    TypeRules,
    VolumeKeys,
    ipv4,
)
from cod.model.keys import ABSOLUTE, DAY, DOMAIN, InDays, SiteTable, Unit, site_key
from cod.policy import volumes
from cod.policy.hardware import keep_marks
from cod.policy.hardware.attributes import ATTRIBUTES
from cod.policy.nodes.subnets import numbers
from cod.policy.notice_delivery import addresses
from cod.policy.people import kerberos
from cod.site import coherence
from cod.site.coherence import together
from cod.site.tables import ApiTable, ServerTable, api_problems

T = TypeVar("T")


def _isolation(table: Any, read: Callable[[Any], Isolation]) -> Isolation | None:
    """Return the table's rules of isolation; None where the table neither names networks nor
    isolates by default. In this case its other keys, such as sizes, are only checked."""
    named = {"vlans", "networks", "interface", "server"}
    if not isinstance(table, dict) or table.get("by_default") or table.keys() & named:
        return _of_servers(table, read)
    some = {"vlans": (2, 3), "networks": "10.0.0.0/8", "interface": "none", "default_size": 29}
    read(some | table)
    return None


def _of_servers(table: Any, read: Callable[[Any], T]) -> T:
    """Return the rules of a table that may list several servers. The first server is taken as this
    host's, until `site.own_address` replaces it by this host's own."""
    if isinstance(table, dict):
        match table.get("server"):
            case [first, *others] if "others" not in table:
                return read(table | {"server": first, "others": others})
        if filled := table.keys() & {"others", "hosts", "place"}:
            raise ValueError(
                f"no such key {min(filled)!r}; `server` lists the addresses of several servers"
            )
    return read(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFile(SiteTable):
    """The whole file."""

    name: str = site_key("site", "the site's name, for people", min_length=1, max_length=63)
    domain: str = site_key(
        "cod.internal",
        "DNS suffix: a vcluster's nodes are NODE.VCLUSTER.DOMAIN",
        pattern=DOMAIN,
        max_length=200,
    )
    server: ServerTable = field(default_factory=ServerTable)
    api: Annotated[ApiTable, together(api_problems)] = field(default_factory=ApiTable)
    boot: Boot = field(default_factory=Boot)
    nmp: Nmp = field(default_factory=Nmp)
    dns: Dns = field(default_factory=Dns)
    isolation: (
        Annotated[Isolation, together(coherence.isolation), WrapValidator(_isolation)] | None
    ) = None
    policy: Policy = field(default_factory=Policy)
    energy: Annotated[Energy, together(coherence.energy)] = field(default_factory=Energy)
    types: TypeRules = field(default_factory=TypeRules)
    images: ImageRules = field(default_factory=ImageRules)
    burnin: BurninRules = field(default_factory=BurninRules)
    console: ConsoleRules = field(default_factory=ConsoleRules)
    notices: NoticeRules = field(default_factory=NoticeRules)
    smtp: Annotated[Mail, together(coherence.mail)] = field(default_factory=Mail)
    signin: SignInKeys = field(default_factory=SignInKeys)
    ldap: Annotated[Ldap, together(coherence.ldap)] = field(default_factory=Ldap)
    oidc: Annotated[Oidc, together(coherence.oidc)] = field(default_factory=Oidc)
    accounts: Annotated[PosixRules, together(coherence.accounts)] = field(
        default_factory=PosixRules
    )
    groups: GroupRules = field(default_factory=GroupRules)
    volumes: VolumeKeys = field(default_factory=VolumeKeys)
    kerberos: Annotated[KerberosRules, together(coherence.kerberos)] = field(
        default_factory=KerberosRules
    )
    subnet: tuple[Annotated[Subnet, together(coherence.subnet), WrapValidator(_of_servers)], ...]
    account: tuple[Account, ...] = ()
    power: tuple[PowerRule, ...] = ()
    keep: tuple[KeepRule, ...] = ()
    switch: tuple[Annotated[Switch, together(coherence.switch)], ...] = ()
    fileserver: tuple[Annotated[FileServer, together(coherence.fileserver)], ...] = ()
    mirror: tuple[ImageMirror, ...] = ()
    ldap_group: tuple[Annotated[LdapGroup, together(coherence.ldap_group)], ...] = ()


def _coherent(file: SiteFile) -> SiteFile:
    if problems := list(_problems(file)):
        raise ValueError("\n".join(problems))
    return file


FILE: TypeAdapter[SiteFile] = TypeAdapter(Annotated[SiteFile, AfterValidator(_coherent)])


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the site file.

    default   in the file's form
    required  the file has to have it
    file      its value names a file
    table     the class of the table under this key; None: the key has a value
    repeated  the table may occur several times
    hint      its type, annotated
    unit      of its number; '': none
    fixed    reason why it cannot be changed while the servers run; '': it has no reason of its own
    secret    its value is not shown to anybody
    """

    name: str
    about: str
    default: Any
    required: bool
    file: bool
    table: type[SiteTable] | None
    repeated: bool
    hint: Any
    unit: str
    fixed: str
    secret: bool


def keys(table: type[SiteTable]) -> list[Key]:
    """Return the keys of a table, or of the whole file."""
    found, hints = [], get_type_hints(table, include_extras=True)
    for each in fields(table):  # type: ignore[arg-type]
        if each.metadata.get("exclude"):
            continue
        marks, kinds = _marks(hints[each.name])
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        if default is not MISSING and any(isinstance(mark, InDays) for mark in marks):
            default /= DAY
        inner = next((kind for kind in kinds if issubclass(kind, SiteTable)), None)
        needed = default == "" and "min_length" in each.metadata
        unit = next((mark.name for mark in marks if isinstance(mark, Unit)), "")
        found.append(
            Key(
                each.name,
                each.metadata.get("description", ""),
                default,
                default is MISSING or needed,
                ABSOLUTE in marks,
                inner,
                inner is not None and tuple in kinds,
                hints[each.name],
                each.metadata.get("unit", unit),
                each.metadata.get("fixed", ""),
                each.metadata.get("secret", False),
            )
        )
    return found


def about(table: type[SiteTable]) -> str:
    """Return the description of a table of the site file, as one line."""
    return " ".join((table.__doc__ or "").split())


def _marks(hint: Any) -> tuple[list[Any], list[type]]:
    """Return the marks of an annotation and of the annotations inside it, and the types in it."""
    marks, kinds = list(getattr(hint, "__metadata__", ())), []
    inner = [hint.__origin__] if marks else list(getattr(hint, "__args__", ()))
    kinds += [each for each in (hint, getattr(hint, "__origin__", None)) if isinstance(each, type)]
    for each in inner:
        more, others = _marks(each)
        marks, kinds = marks + more, kinds + others
    return marks, kinds


def _problems(file: SiteFile) -> Iterator[str]:
    """Yield a sentence for each contradiction between tables; each begins with the key."""
    if file.boot.http_port == file.boot.confd_port:
        yield "boot.http_port and boot.confd_port should differ"
    if not file.subnet:
        yield "subnet: at least one [[subnet]] is needed"
    yield from _missing(file)
    yield from _single_keys(file)
    yield from _account_problems(file)
    yield from _isolation_problems(file)
    yield from _home_problems(file)
    if file.volumes.sec != "sys":
        for server in file.fileserver:
            try:
                kerberos.check_volume(file.volumes.sec, file.kerberos, server)
            except Refused as refused:
                yield f"volumes.sec: {refused.sentence}"
    names = [server.name for server in file.fileserver]
    yield from (
        f"fileserver.{n}.name: {name!r} is used twice"
        for n, name in enumerate(names)
        if name in names[:n]
    )
    yield from _mirror_problems(file)
    for n, subnet in enumerate(file.subnet):
        for other in file.subnet[:n]:
            if subnet.name == other.name:
                yield f"subnet.{n}.name: {subnet.name!r} is used twice"
            if ip_network(subnet.network).overlaps(ip_network(other.network)):
                yield f"subnet.{n}.network: {subnet.network} overlaps that of {other.name!r}"
            if (
                subnet.interface is not None
                and subnet.interface == other.interface
                and subnet.relay is None
            ):
                yield (
                    f"subnet.{n}.interface: {subnet.interface} serves {other.name!r} already; one"
                    " needs a relay"
                )


def _missing(file: SiteFile) -> Iterator[str]:
    for name in ("account", "keep", "ldap_group"):
        for n, table in enumerate(getattr(file, name)):
            for key in keys(type(table)):
                if key.required and not getattr(table, key.name):
                    yield f"{name}.{n}.{key.name}: is missing; give it a value"


def _single_keys(file: SiteFile) -> Iterator[str]:
    """Yield a sentence for each key with an invalid value."""
    for n, path in enumerate(file.types.ignore):
        if path not in ATTRIBUTES:
            near = get_close_matches(path, ATTRIBUTES, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            yield f"types.ignore.{n}: {path!r} is no attribute of a node{hint}"
        if path in ("disk", "disk/local", "disk/keep", "disk/sector", "disk/bootable"):
            yield (
                f"types.ignore: {path} cannot be left out: it says which disk a template can be"
                " written to; name what shall not count, such as disk/model or disk/size"
            )
    keys = [
        ("sender", file.smtp.sender),
        *((f"admins.{n}", each) for n, each in enumerate(file.smtp.admins)),
    ]
    for key, address in keys:
        try:
            one = not address or len(addresses(address)) == 1
        except ValueError as error:
            yield f"smtp.{key}: {error}"
        else:
            if not one:
                yield f"smtp.{key}: should be one e-mail address such as cod@example.org"
    for n, rule in enumerate(file.keep):
        try:
            if rule.disk:
                keep_marks.check(rule.disk)
        except Refused as refused:
            yield f"keep.{n}.disk: {refused.sentence}"


def _mirror_problems(file: SiteFile) -> Iterator[str]:
    """Yield a sentence for each error in a mirror. These matter because a mirror's address gives
    access to every image."""
    subnets = {subnet.name for subnet in file.subnet}
    for n, mirror in enumerate(file.mirror):
        for name in mirror.subnets:
            if name not in subnets:
                yield f"mirror.{n}.subnets: there is no [[subnet]] named {name!r}"
        for subnet in file.subnet:
            if numbers(subnet).owns(ipv4(mirror.address)):
                yield (
                    f"mirror.{n}.address: {mirror.address} is among those that nodes of"
                    f" {subnet.name!r} get; take one outside boot_pool and block_pool"
                )
        if file.isolation and ip_address(mirror.address) in ip_network(file.isolation.networks):
            yield f"mirror.{n}.address: {mirror.address} is in isolation.networks"


def _isolation_problems(file: SiteFile) -> Iterator[str]:
    rules = file.isolation
    if rules is None:
        return
    count = len(file.subnet[0].servers) if file.subnet else 1
    if rules.server and len(rules.servers) != count:
        yield (
            f"isolation.server: should list an address of each of the {count} servers that `server`"
            " of the first [[subnet]] names"
        )
    for n, switch in enumerate(file.switch):
        if rules.vlans[0] <= switch.provisioning_vlan <= rules.vlans[1]:
            yield (
                f"switch.{n}.provisioning_vlan: {switch.provisioning_vlan} is among isolation.vlans"
            )
    for n, subnet in enumerate(file.subnet):
        if ip_network(subnet.network).overlaps(ip_network(rules.networks)):
            yield (
                f"isolation.networks: {rules.networks} overlaps {subnet.network} of subnet"
                f" {subnet.name!r}"
            )
        if re.fullmatch(r"vlan-\d+", subnet.name):
            yield (
                f"subnet.{n}.name: {subnet.name!r} is how isolated vclusters' subnets are called;"
                " choose another"
            )


def _home_problems(file: SiteFile) -> Iterator[str]:
    if not file.fileserver or not file.volumes.homes:
        return
    if "home" in file.ldap.take:
        yield (
            "ldap.take: should not have 'home' where file servers have the home directories, at"
            " accounts.home; or set volumes.homes = false"
        )
    where, _, name = file.accounts.home.rpartition("/")
    try:
        volumes.check_mount(where)
    except Refused:
        name = ""
    if name != "{name}":
        yield (
            "accounts.home: should be a directory below one that can be mounted, such as"
            " /home/{name}; or set volumes.homes = false"
        )


def _account_problems(file: SiteFile) -> Iterator[str]:
    names = [account.name for account in file.account]
    for n, name in enumerate(names):
        if name in names[:n]:
            yield f"account.{n}.name: {name!r} is used twice"
    used = [
        *((f"power.{n}", rule.account) for n, rule in enumerate(file.power)),
        *((f"switch.{n}", switch.account) for n, switch in enumerate(file.switch)),
    ]
    for where, account in used:
        if account is not None and account not in names:
            yield f"{where}.account: there is no [[account]] named {account!r}"
    switches = [switch.name for switch in file.switch]
    for n, name in enumerate(switches):
        if name in switches[:n]:
            yield f"switch.{n}.name: {name!r} is used twice"
