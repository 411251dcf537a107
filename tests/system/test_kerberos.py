"""A site with Debian's KDC: the example's command makes a node's keytab, the node uses it, people
log in by password and by ticket, and the principals go with the node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from email import message_from_string
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from cod.flows.agents import orders
from cod.model import Site
from cod.orders import Order
from cod.pool import in_transaction
from cod.security.ca import Ca
from cod.security.sealed import Sealer
from cod.site.load import load
from cod.store import tables as t
from cod.store.database import connect
from cod.store.engine import Tx
from cod.store.nodes import host_keys, nodes
from cod.store.people import groups
from tests import ldap_site
from tests.conftest import upgrade
from tests.store.agentlab import hardware
from tests.system.kdc import REALM, Kdc
from tests.system.membernode import MemberNode, network
from tests.waiting import until

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.in_turn(3, together=True),
    pytest.mark.xdist_group("accounts"),
]

ROOT = Path(__file__).parents[2]
COD = Path(sys.executable).with_name("cod")
SERVER, NODE, HOST = "10.77.0.1", "10.77.128.5", "n1.pool.cod.test"
KEYED = (
    '<template name="members"><image target="disk" url="http://10.0.0.9/a" size="1000000"'
    ' compression="none"/><personalise seed="nocloud" kerberos="yes"/></template>'
)
SITE = """\
name = "test"
domain = "cod.test"
[server]
data_dir = "{folder}"
[kerberos]
realm = "{realm}"
kdcs = ["{server}"]
keytab_command = "{folder}/keytab.sh"
[[subnet]]
name = "lab"
network = "10.77.0.0/16"
server = "10.77.0.1"
interface = "br0"
boot_pool = ["10.77.1.0", "10.77.1.255"]
block_pool = ["10.77.128.0", "10.77.191.255"]
"""


class Stand:
    """A KDC, COD's edge, and node n1 of the vcluster `pool`, of which ann is an owner."""

    def __init__(self, folder: Path, namespace: str, other: str) -> None:
        self.folder, self.namespace = folder, namespace
        self.kdc = Kdc(folder / "kdc", SERVER, "ip", "netns", "exec", namespace)
        self.kdc.admin("addprinc", "-pw", "ann's secret", "ann")
        shutil.copy(ROOT / "docs/examples/keytab.sh", folder / "keytab.sh")
        (folder / "keytab.sh.conf").write_text(
            f"KEYTAB={folder}/kdc/cod.keytab\nexport KRB5_CONFIG={self.kdc.config}\n"
        )
        (folder / "ask").write_text('#!/bin/sh\nprintf "%s\\n" "$PASSWORD"\n')
        (folder / "ask").chmod(0o755)
        file = folder / "site.toml"
        file.write_text(SITE.format(folder=folder, realm=REALM, server=SERVER))
        self.engine: Engine = connect(f"sqlite:///{folder}/cod.db")
        upgrade(self.engine)
        with self.engine.begin() as tx:
            groups.ensure(tx, "site", 0.0)
            ldap_site.user(tx, "ann", {"physics": "owner"}, keys=0)
            ldap_site.vcluster(tx, "pool", "physics", {"n1": NODE})
            tx.execute(t.config_templates.update().values(document=KEYED, name="physics/members"))
        authority = Ca(folder / "ca", "test")
        self.unseal = Sealer(authority.keytab_key()).open
        self.site: Site = replace(load(file)[0], authority=authority.certificate.decode())
        with open(folder / "edge.log", "ab") as log:
            self.edge = subprocess.Popen(
                [
                    *("ip", "netns", "exec", namespace, str(COD), "--site", str(file)),
                    *("serve", "--only", "edge"),
                ],
                stdout=log,
                stderr=log,
            )
        self.first = self.prime()
        self.settle("active")
        self.node = MemberNode("n1", other, folder / "n1", setup(self.first))
        until(lambda: self.node.says("id", "-u", "ann"), self.node.log.read_text, every=0.2)

    def tx(self, flow: Any, *args: Any, **told: Any) -> Any:
        return in_transaction(self.engine, flow, *args, **told)

    def settle(self, state: str) -> None:
        """Put the node into a state, in which it has what the last order wrote."""

        def change(tx: Tx) -> None:
            (node,) = nodes.every(tx)
            host_keys.written(tx, node.id)
            template = tx.scalar(t.vclusters.select().with_only_columns(t.vclusters.c.template_id))
            tx.execute(
                t.nodes.update().values(
                    state=state,
                    generation=node.generation + 1,
                    template_id=template,
                    attributes=hardware(node.boot_mac),
                )
            )

        self.tx(change)

    def prime(self) -> Order:
        """Have the node installed; returns its order, with the keytab that COD's edge has had made
        for it."""
        self.settle("prime")

        def order(tx: Tx) -> Order | None:
            (node,) = nodes.every(tx)
            if host_keys.sealed_keytab(tx, HOST, f"{node.id}.{node.generation}") is None:
                return None
            return orders.current(tx, node, self.site, unseal=self.unseal)

        log = (self.folder / "edge.log").read_text
        return until(lambda: self.tx(order), log, seconds=300, every=0.2)  # the edge begins

    def ssh(self, *options: str, password: str = "", command: str = "klist") -> Any:
        """Log in as ann from the server's namespace."""
        words = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR")
        return self.kdc.run(
            *("env", f"SSH_ASKPASS={self.folder}/ask", "SSH_ASKPASS_REQUIRE=force"),
            *(f"PASSWORD={password}", "ssh", "-F", "none", "-o", "PubkeyAuthentication=no"),
            *(word for each in (*words, *options) for word in ("-o", each)),
            f"ann@{NODE}",
            command,
        )

    def end(self) -> None:
        if hasattr(self, "node"):
            self.node.end()
        self.edge.kill()
        self.edge.wait()
        self.kdc.stop()
        self.engine.dispose()


def setup(order: Order) -> str:
    """Return a script that does what cloud-init does with the scripts of an order's seed."""
    parts = message_from_string(order.seed["vendor-data"]).walk()
    scripts = [
        str(part.get_payload()) for part in parts if part.get_content_type() == "text/x-shellscript"
    ]
    assert len(scripts) >= 3
    return "".join(
        f"cat >/run/{n} <<'NEXT_SCRIPT'\n{text}\nNEXT_SCRIPT\nsh /run/{n}\n"
        for n, text in enumerate(scripts)
    )


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    if os.getuid():
        pytest.skip("namespaces need root")
    with network(SERVER, [NODE], f"krb{os.getpid() % 10_000}") as (own, others):
        made = Stand(tmp_path_factory.mktemp("krb"), own, others[0])
        yield made
        made.end()


def test_the_node_is_known_to_the_kdc_by_its_own_key(stand: Stand) -> None:
    node = stand.node
    assert {f"host/{HOST}", f"nfs/{HOST}"} <= stand.kdc.principals()
    assert node.says("stat", "-c", "%a %U", "/etc/krb5.keytab") == "600 root"
    for service in ("host", "nfs"):
        done = node.run("kinit", "-k", f"{service}/{HOST}")
        assert done.returncode == 0, done.stderr + stand.kdc.told()
    assert f"Default principal: nfs/{HOST}@{REALM}" in node.says("klist")
    node.run("kdestroy")


def test_a_password_opens_the_node_and_brings_a_ticket(stand: Stand) -> None:
    done = stand.ssh("PreferredAuthentications=password", password="ann's secret")
    assert f"Default principal: ann@{REALM}" in done.stdout, (
        done.stderr + stand.node.log.read_text()[-3000:] + stand.kdc.told()
    )
    wrong = stand.ssh(
        "PreferredAuthentications=password", "NumberOfPasswordPrompts=1", password="x"
    )
    assert wrong.returncode == 255


def test_a_ticket_opens_the_node_without_a_password(stand: Stand) -> None:
    kinit = ("sh", "-c", 'echo "ann\'s secret" | kinit -f ann')
    stand.kdc.run(*kinit, check=True)
    done = stand.ssh(
        "PreferredAuthentications=gssapi-with-mic",
        "GSSAPIAuthentication=yes",
        "GSSAPIDelegateCredentials=yes",
        f"GSSAPIServerIdentity={HOST}",
    )
    assert f"Default principal: ann@{REALM}" in done.stdout, (
        done.stderr + stand.node.log.read_text()[-3000:] + stand.kdc.told()
    )
    stand.kdc.run("kdestroy", check=True)
    refused = stand.ssh("PreferredAuthentications=gssapi-with-mic", "GSSAPIAuthentication=yes")
    assert refused.returncode == 255


def test_what_is_in_the_database_is_no_keytab(stand: Stand) -> None:
    second = stand.prime()
    keytab = b64decode(second.seed["krb5.keytab.base64"])
    (row,) = stand.tx(host_keys.keytabs, [HOST])
    assert row.sealed is not None
    assert keytab not in row.sealed
    for file in stand.folder.glob("cod.db*"):
        assert keytab[10:60] not in file.read_bytes()
    assert keytab[10:60] not in (stand.folder / "edge.log").read_bytes()


def test_an_earlier_installation_s_keys_are_worth_nothing(stand: Stand) -> None:
    second = stand.prime()
    assert stand.first.seed["krb5.keytab.base64"] != second.seed["krb5.keytab.base64"]
    assert stand.node.run("kinit", "-k", f"host/{HOST}").returncode != 0
    (stand.folder / "second").write_bytes(b64decode(second.seed["krb5.keytab.base64"]))
    done = stand.kdc.run("kinit", "-k", "-t", str(stand.folder / "second"), f"host/{HOST}")
    assert done.returncode == 0, done.stderr
    stand.kdc.run("kdestroy")


def test_a_node_waits_while_the_kdc_is_away(stand: Stand) -> None:
    stand.kdc.stop()
    stand.settle("prime")
    try:
        reason = until(
            lambda: [one.reason for one in stand.tx(host_keys.keytabs, [HOST]) if one.reason],
            seconds=120,
        )
        assert "keytab.sh make failed: kadmin: " in reason[0], reason
    finally:
        stand.kdc.start()
    until(lambda: [one for one in stand.tx(host_keys.keytabs, [HOST]) if one.sealed], seconds=120)


def test_the_principals_go_with_the_node(stand: Stand) -> None:
    stand.settle("inactive")
    stand.tx(lambda tx: tx.execute(t.nodes.update().values(vcluster_id=None)))
    until(
        lambda: not {f"host/{HOST}", f"nfs/{HOST}"} & stand.kdc.principals(),
        (stand.folder / "edge.log").read_text,
        every=0.5,
    )
    until(lambda: not stand.tx(host_keys.keytabs, [HOST]))
    assert "ann" in stand.kdc.principals()
