"""The whole site file, and its rules that span tables."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import Field, model_validator

from cod.model import Refused
from cod.policy import volumes
from cod.site.accounts import AccountsTable, GroupsTable
from cod.site.isolation import IsolationTable
from cod.site.signin import LdapTable, OidcTable, SignInTable
from cod.site.subnets import SubnetTable
from cod.site.switches import SwitchTable
from cod.site.tables import (
    AccountTable,
    ApiTable,
    BootTable,
    BurninTable,
    ConsoleTable,
    DnsTable,
    EnergyTable,
    ImagesTable,
    KeepTable,
    NmpTable,
    NoticesTable,
    PolicyTable,
    PowerTable,
    ServerTable,
    SmtpTable,
    TypesTable,
)
from cod.site.values import DOMAIN, Table
from cod.site.volumes import FileServerTable, VolumesTable


class SiteFile(Table):
    """The whole file."""

    name: str = Field(
        "site", min_length=1, max_length=63, description="the site's name, for people"
    )
    domain: str = Field(
        "cod.internal",
        pattern=DOMAIN,
        max_length=200,
        description="DNS suffix: a vcluster's nodes are NODE.VCLUSTER.DOMAIN",
    )
    server: ServerTable = ServerTable.model_validate({})
    api: ApiTable = ApiTable.model_validate({})
    boot: BootTable = BootTable.model_validate({})
    nmp: NmpTable = NmpTable.model_validate({})
    dns: DnsTable = DnsTable.model_validate({})
    isolation: IsolationTable = IsolationTable.model_validate({})
    policy: PolicyTable = PolicyTable.model_validate({})
    energy: EnergyTable = EnergyTable.model_validate({})
    types: TypesTable = TypesTable.model_validate({})
    images: ImagesTable = ImagesTable.model_validate({})
    burnin: BurninTable = BurninTable.model_validate({})
    console: ConsoleTable = ConsoleTable.model_validate({})
    notices: NoticesTable = NoticesTable.model_validate({})
    smtp: SmtpTable = SmtpTable.model_validate({})
    signin: SignInTable = SignInTable.model_validate({})
    ldap: LdapTable = LdapTable.model_validate({})
    oidc: OidcTable = OidcTable.model_validate({})
    accounts: AccountsTable = AccountsTable.model_validate({})
    groups: GroupsTable = GroupsTable.model_validate({})
    volumes: VolumesTable = VolumesTable.model_validate({})
    subnet: tuple[SubnetTable, ...]
    account: tuple[AccountTable, ...] = ()
    power: tuple[PowerTable, ...] = ()
    keep: tuple[KeepTable, ...] = ()
    switch: tuple[SwitchTable, ...] = ()
    fileserver: tuple[FileServerTable, ...] = ()

    @model_validator(mode="after")
    def _coherent(self) -> SiteFile:
        problems = list(_problems(self))
        if problems:
            raise ValueError("; ".join(problems))
        return self


def _problems(file: SiteFile) -> Iterator[str]:
    """Yield what of different tables does not go together; each sentence begins with the key."""
    if file.boot.http_port == file.boot.confd_port:
        yield "boot.http_port and boot.confd_port should differ"
    if not file.subnet:
        yield "subnet: at least one [[subnet]] is needed"
    yield from _account_problems(file)
    yield from _isolation_problems(file)
    yield from _home_problems(file)
    names = [server.name for server in file.fileserver]
    yield from (
        f"fileserver.{n}.name: {name!r} is used twice"
        for n, name in enumerate(names)
        if name in names[:n]
    )
    for n, subnet in enumerate(file.subnet):
        for other in file.subnet[:n]:
            if subnet.name == other.name:
                yield f"subnet.{n}.name: {subnet.name!r} is used twice"
            if subnet.network.overlaps(other.network):
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


def _isolation_problems(file: SiteFile) -> Iterator[str]:
    rules = file.isolation
    if rules.vlans is None or rules.networks is None:
        return
    for n, switch in enumerate(file.switch):
        if rules.vlans[0] <= switch.provisioning_vlan <= rules.vlans[1]:
            yield (
                f"switch.{n}.provisioning_vlan: {switch.provisioning_vlan} is among isolation.vlans"
            )
    for n, subnet in enumerate(file.subnet):
        if subnet.network.overlaps(rules.networks):
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
