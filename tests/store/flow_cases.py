"""The flows that pools run, found in the sources, and made-up arguments for each."""

from __future__ import annotations

import ast
import hashlib
import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import select

import cod
from cod.choices import NoticeMail
from cod.core import notices as core_notices
from cod.core.networks import switch_ports as core_ports
from cod.flows import pruning, servers
from cod.flows.agents import orders, progress, report, sessions
from cod.flows.boot import dhcp, script, zones
from cod.flows.images import holders, images, uploads
from cod.flows.nodes import (
    captures,
    consoles,
    deadlines,
    energy,
    energy_curve,
    hold,
    keytabs,
    power,
    readiness,
    switches,
)
from cod.flows.nodes import nodes as node_flows
from cod.flows.notices import mail_choices, notices, webhook_feed
from cod.flows.people import directory_sync, invitations, signin
from cod.flows.people import groups as group_flows
from cod.flows.people import people as people_flows
from cod.flows.people import tokens as token_flows
from cod.flows.scheduler import apply_plan, maintenance, requests, series, starts, usage
from cod.flows.scheduler import vclusters as owner_flows
from cod.flows.vcms import certificates, vcms
from cod.flows.volumes import exports
from cod.flows.volumes import volumes as volume_flows
from cod.model import (
    Account,
    AskedNodes,
    AskedTuple,
    AskedVcluster,
    AskedWindow,
    Binding,
    BootSecret,
    DhcpQuery,
    Energy,
    FileServer,
    HostPart,
    Identity,
    ImageRules,
    Ingested,
    KeepRule,
    KerberosRules,
    KeytabTask,
    Meter,
    Peer,
    Refused,
    SignInRules,
    Switch,
    VolumeRules,
    Who,
    ipv4,
)
from cod.net.nmp import verbs
from cod.policy.nodes.newcomers import Newcomers
from cod.states import NodeEvent, Step
from cod.store import claims, stories
from cod.store import servers as server_rows
from cod.store import tables as t
from cod.store import vcms as vcm_rows
from cod.store.nodes import bindings, nodes
from cod.store.nodes import consoles as console_rows
from cod.store.people import groups, people, signins
from cod.store.scheduler import reclaims
from cod.store.scheduler.starts import StartRow
from cod.wire.nmp import bodies as b
from tests.contexts import flow_context
from tests.store.agentlab import KEY, NOW, TEMPLATE, Lab, hardware, mac
from tests.store.manager_world import add_node, arrive, furnish, run_pass

# The arguments of a pool's methods: which of them is the flow.
RUNS = {"run": 0, "run_at": 1, "run_together": 0, "run_once": 1}
CALLED = re.compile(r"pool_?\s*\.\s*run|self\._(run|batches|once)\(")  # in a file with such calls
PASSED = {"_run": 0, "_batches": 0, "_once": 0}  # methods that hand a flow on to a pool

# Where a pool gets a flow that has no name there: how each of those is found.
VARIABLE = {
    ("net/confd/connection.py", "flow"): "handed to _run",
    ("web/api/calls.py", "flow"): "the routes, by run_once",
    ("web/http/uploads/intake.py", "flow"): "uploads.complete, by run_once",
    ("web/signin/service.py", "flow"): "handed to _once",
    ("workers/manager.py", "act.flow"): "the acts of a plan",
    ("workers/pruning.py", "flow"): "handed to _batches",
}


@dataclass(frozen=True, slots=True)
class Use:
    """A place where a flow is handed to a pool: by which method; '' for a flow that has no name
    there."""

    file: str
    method: str
    text: str
    flow: str


def uses() -> Iterator[Use]:
    """Yield where flows are handed to pools to be run for writing."""
    root = Path(cod.__file__).parent
    for path in sorted(root.rglob("*.py")):
        file = str(path.relative_to(root))
        if file == "pool.py" or file.startswith("sim/") or "pool" not in (text := path.read_text()):
            continue
        if not CALLED.search(text):  # each worker of a run looks: to parse is dear
            continue
        module = f"cod.{file.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                place = _place(call.func)
                if place is not None and len(call.args) > place:
                    given = _unwrapped(call.args[place])
                    yield Use(file, call.func.attr, given, _name(module, given))


def _place(called: ast.Attribute) -> int | None:
    """Return which argument is a flow that a pool runs; None: none."""
    on = ast.unparse(called.value)
    if on == "self" and called.attr in PASSED:
        return PASSED[called.attr]
    is_pool = on.rpartition(".")[2].strip("_") == "pool"
    return RUNS.get(called.attr) if is_pool else None


def _unwrapped(given: ast.expr) -> str:
    while isinstance(given, ast.Call) and ast.unparse(given.func) == "partial":
        given = given.args[0]
    return ast.unparse(given)


def _name(module: str, text: str) -> str:
    """Return a flow's module and name; '' where `text` is a variable."""
    try:
        found: Any = importlib.import_module(module)
        for part in text.split("."):
            found = getattr(found, part)
    except AttributeError:
        return ""
    return name_of(found)


def name_of(flow: Any) -> str:
    """Return a flow's module and name, without its package: agents.report.report."""
    while isinstance(flow, partial):
        flow = flow.func
    return f"{flow.__module__}.{flow.__qualname__}".removeprefix("cod.").removeprefix("flows.")


# ---------------------------------------------------------------- the cases

Call = partial[Any]
CASES: dict[str, Callable[[Lab], Call]] = {}
MACHINE = "10.77.1.1"
RULES = SignInRules()
SECRET = "ab" * 32
MADE = Ingested("raw", "disk", 900, 500, 300, SECRET, "cd" * 32)
OLD = NOW - 1e6


def case(make: Callable[[Lab], Call]) -> Callable[[Lab], Call]:
    """Add a case: a function that makes a flow's world, and returns the flow with arguments."""
    CASES[make.__name__.replace("__", ".")] = make
    return make


def primed(lab: Lab) -> tuple[Peer, str]:
    """Return the connection of machine 1, which is being primed for a vcluster, and its order."""
    lab.machine(1, "trampoline")
    peer = lab.boots(1)
    lab.assign(1, lab.vcluster(lab.template()))
    return peer, lab.order(1).id


def booting(lab: Lab) -> None:
    """Bring machine 1 to the boot of its vcluster's system."""
    peer, order = primed(lab)
    lab.done(peer, order)


@case
def agents__orders__waiting(lab: Lab) -> Call:
    primed(lab)
    return partial(orders.waiting, server="a", site=lab.site, now=lab.now, unsent=set())


@case
def agents__sessions__lookup(lab: Lab) -> Call:
    lab.machine(1)
    return partial(sessions.lookup, secret_id=lab.mint(1), mac=mac(1), address=MACHINE, now=NOW)


@case
def agents__sessions__open(lab: Lab) -> Call:
    lab.machine(1, "boot")
    secret = lab.mint(1)
    made = BootSecret("made", mac(1), "session", MACHINE, KEY[:16], KEY, KEY, 0.0)
    return partial(
        sessions.open, secret_id=secret, session=made, server="a", site=lab.site, now=lab.now
    )


@case
def agents__sessions__held(lab: Lab) -> Call:
    primed(lab)
    return partial(sessions.held, server="a", now=lab.now + 30)


@case
def agents__sessions__lost(lab: Lab) -> Call:
    peer, _ = primed(lab)
    return partial(sessions.lost, peer=peer, site=lab.site, now=lab.now + 600)


@case
def store__nodes__sessions__peers_of(lab: Lab) -> Call:
    primed(lab)
    return partial(sessions.inherited, server="a")


@case
def store__nodes__sessions__seen(lab: Lab) -> Call:
    peer, _ = primed(lab)
    return partial(sessions.seen, when=[(peer.node_id, lab.now + 9)])


@case
def agents__report__report(lab: Lab) -> Call:
    lab.machine(1)
    peer = lab.open(1)
    return partial(
        report.report, peer=peer, document=hardware(mac(1), mac(1, 1)), site=lab.site, now=lab.now
    )


@case
def agents__progress__progress(lab: Lab) -> Call:
    peer, order = primed(lab)
    told = ("write", 5, 10, 5.0)
    return bound(progress.progress, peer, order, *told, lab.site, lab.now + 5)


@case
def agents__progress__done(lab: Lab) -> Call:
    peer, order = primed(lab)
    return bound(progress.done, peer, order, {"bytes_written": 9.0}, lab.site, lab.now + 5)


@case
def agents__progress__failed(lab: Lab) -> Call:
    peer, order = primed(lab)
    return bound(progress.failed, peer, order, "no disk", lab.site, lab.now + 5)


def bound(flow: Callable[..., Any], *args: Any) -> Call:
    """Return a flow with all its arguments but the transaction, which comes first."""

    def run(tx: Any) -> Any:
        return flow(tx, *args)

    run.__module__, run.__qualname__ = flow.__module__, flow.__qualname__
    return partial(run)


# ---------------------------------------------------------------- boot


@case
def boot__dhcp__answer(lab: Lab) -> Call:
    lab.machine(1, "boot")
    queries = [
        DhcpQuery(kind, mac(number), 7, "lab", "ipxe")
        for kind, number in (("DISCOVER", 1), ("DISCOVER", 2), ("REQUEST", 3))
    ]
    return bound(dhcp.answer, queries, lab.site, Newcomers(), lab.now)


@case
def core__networks__isolation__subnets(lab: Lab) -> Call:
    return bound(dhcp.isolated_subnets, lab.site)


def switched(lab: Lab) -> tuple[power.PowerTask, Any]:
    """Return the claimed power cycle of a machine that boots by a nonce, and its site."""
    site = replace(lab.site, accounts=(Account("rack", "admin", "/nowhere", boot_nonce=True),))
    lab.machine(1, "trampoline", power_account="rack", home_subnet="lab")
    bind(lab)
    return cycled(lab), site


def bind(lab: Lab) -> None:
    """Give machine 1 its address while it boots."""
    row = Binding(ipv4(MACHINE), mac(1), "boot", None, "lab", None, "bound", lab.now + 90000)
    bindings.add(lab.tx, [row])


def cycled(lab: Lab) -> power.PowerTask:
    """Return the claimed power cycle of machine 1."""
    nodes.wish_power(lab.tx, lab.node(1), "cycle", lab.now)
    (task,) = power.claim(lab.tx, "a", {"lab": 9}, lab.now, 60.0)
    return task


@case
def boot__script__bring(lab: Lab) -> Call:
    task, site = switched(lab)
    power.boot_uri(lab.tx, task, SECRET[:32], site, lab.now)
    return bound(script.bring, SECRET[:32], MACHINE, site, lab.now)


@case
def boot__script__mint(lab: Lab) -> Call:
    task, site = switched(lab)
    power.boot_uri(lab.tx, task, SECRET[:32], site, lab.now)
    script.bring(lab.tx, SECRET[:32], MACHINE, site, lab.now)
    return bound(script.mint, mac(1), MACHINE, "s", KEY, KEY, KEY, site, lab.now)


@case
def boot__script__script(lab: Lab) -> Call:
    booting(lab)
    bind(lab)
    return bound(script.script, mac(1), MACHINE, lab.site, lab.now)


@case
def boot__zones__tell_of_secondary(lab: Lab) -> Call:
    told = {"secondary": "192.0.2.53@cod1", "wrong": "it does not answer"}
    return partial(zones.tell_of_secondary, **told, now=lab.now)


@case
def boot__zones__forget_secondaries(lab: Lab) -> Call:
    zones.tell_of_secondary(lab.tx, secondary="192.0.2.53@cod1", wrong="it is away", now=lab.now)
    return partial(zones.forget_secondaries, server="cod1", known=(), now=lab.now)


@case
def boot__zones__configured(lab: Lab) -> Call:
    return bound(zones.configured, lab.site, lab.now)


# ---------------------------------------------------------------- images


def upload(lab: Lab) -> Any:
    return uploads.create(
        lab.tx,
        upload_id=SECRET[:32],
        name="debian",
        group="",
        size=1000,
        actor="user:ann",
        rules=ImageRules(),
        now=lab.now,
    )


def completed(lab: Lab) -> Any:
    """Return a new image, which is to be taken in."""
    return completion(upload(lab))(lab.tx).value


def completion(begun: Any) -> Call:
    return partial(
        uploads.complete,
        upload_id=begun.id,
        name=begun.name,
        source=f"/in/{begun.id}",
        sha256=SECRET,
        format="raw",
        size=1000,
        now=NOW,
    )


@case
def images__uploads__begin(lab: Lab) -> Call:
    return partial(uploads.begin, seen=upload(lab), length=999, boot="b", now=lab.now)


@case
def images__uploads__grown(lab: Lab) -> Call:
    begun = upload(lab)
    rules = ImageRules()
    return partial(uploads.grown, upload_id=begun.id, offset=500, rules=rules, now=lab.now + 1)


@case
def images__uploads__complete(lab: Lab) -> Call:
    return completion(upload(lab))


@case
def images__uploads__drop(lab: Lab) -> Call:
    return partial(uploads.drop, upload_id=upload(lab).id)


@case
def images__uploads__sweep(lab: Lab) -> Call:
    upload(lab)
    return partial(uploads.sweep, now=lab.now + 1e9)


@case
def images__images__finish(lab: Lab) -> Call:
    image = completed(lab)
    claim = claims.hold(lab.tx, "ingest", "a", lab.now, 30.0)
    return partial(images.finish, image_id=image.id, ingested=MADE, claim=claim)


@case
def images__images__fail(lab: Lab) -> Call:
    image = completed(lab)
    claim = claims.hold(lab.tx, "ingest", "a", lab.now, 30.0)
    return partial(images.fail, image_id=image.id, reason="no image", claim=claim)


@case
def images__images__unneeded(lab: Lab) -> Call:
    server_rows.hold(lab.tx, "its-old-name", {"ab" * 32})
    return partial(images.unneeded, present=frozenset({"ef" * 32}), alone=True)


@case
def images__holders__note(_: Lab) -> Call:
    return partial(holders.note, server="a", names=["ef" * 32])


@case
def servers__renew(lab: Lab) -> Call:
    part = HostPart("a", "web", ("10.77.0.1",), "0.1", "0043", lab.now, lab.now)
    return partial(servers.renew, part=part)


# ---------------------------------------------------------------- nodes


def captured(lab: Lab) -> dict[str, str]:
    """Return what the agent of machine 1 says, whose disk is being captured."""
    booting(lab)
    lab.apply(1, Step(NodeEvent.BOOTED, "x"))
    captures.want(
        lab.tx,
        flow_context(lab.site, lab.now, "user:ann"),
        name="node1",
        image="mine",
        secret=SECRET,
    )
    lab.boots(1)
    return {"order": lab.order(1).id, "address": MACHINE, "secret": SECRET}


@case
def nodes__captures__note_digest(lab: Lab) -> Call:
    return partial(captures.note_digest, **captured(lab), digest=MADE.digest)


@case
def nodes__captures__keep(lab: Lab) -> Call:
    said = captured(lab)
    captures.note_digest(lab.tx, **said, digest=MADE.digest)
    rules, saved = ImageRules(), replace(MADE, format="capture")
    return partial(captures.keep, **said, ingested=saved, partitions=(), rules=rules, now=lab.now)


@case
def nodes__consoles__typed(lab: Lab) -> Call:
    node = lab.machine(1, "inactive")
    claims.hold(lab.tx, consoles.CLAIM, "a", lab.now, 30.0)
    console_rows.type_(lab.tx, node.id, "free", "x", lab.now, administrator=True)
    return bound(consoles.typed, "a", lab.now)


@case
def nodes__deadlines__run(lab: Lab) -> Call:
    primed(lab)
    return bound(deadlines.run, lab.site, lab.now + 1e5)


@case
def nodes__energy__note(lab: Lab) -> Call:
    lab.machine(1, "inactive")
    energy.note(lab.tx, energy.Reading(None, lab.now), lab.site.policy)
    reading = energy.count(lab.tx, Energy(watts_idle=80.0), lab.now + 60)
    return bound(energy.note, reading, lab.site.policy)


@case
def nodes__energy_curve__note(lab: Lab) -> Call:
    hours = "".join(f"{hour},{100 + hour}\n" for hour in range(24)).encode()
    return bound(energy_curve.note, Energy(curve_file="/etc/cod/curve.csv"), hours, "", lab.now)


@case
def nodes__nodes__look_again(lab: Lab) -> Call:
    lab.machine(1, "inactive")
    site = replace(lab.site, keep=(KeepRule("*", "path:/dev/vda"),))
    return partial(node_flows.look_again, after=0, site=site, now=lab.now)


@case
def nodes__power__began(lab: Lab) -> Call:
    lab.machine(1, "inactive")
    cycled(lab)
    return bound(power.began, "a", lab.now + 1)


@case
def nodes__power__claim(lab: Lab) -> Call:
    lab.machine(1, "inactive")
    nodes.wish_power(lab.tx, lab.node(1), "cycle", lab.now)
    return bound(power.claim, "a", {"lab": 1}, lab.now, 60.0)


@case
def nodes__power__boot_uri(lab: Lab) -> Call:
    task, site = switched(lab)
    return bound(power.boot_uri, task, SECRET[:32], site, lab.now)


@case
def nodes__power__succeeded(lab: Lab) -> Call:
    lab.machine(1, "inactive")
    return bound(power.succeeded, cycled(lab), "on", lab.now + 1)


@case
def nodes__power__failed(lab: Lab) -> Call:
    lab.machine(1, "inactive")
    return bound(power.failed, cycled(lab), "no answer", lab.now + 1)


def meter(lab: Lab) -> Meter:
    lab.machine(1, "inactive", power="on")
    return Meter(lab.node(1).id, "node1", "lab", lab.node(1).power_address, None)


@case
def nodes__power__measured(lab: Lab) -> Call:
    return bound(power.measured, meter(lab), 212.0)


@case
def nodes__power__seen(lab: Lab) -> Call:
    booting(lab)
    lab.apply(1, Step(NodeEvent.BOOTED, "x"))
    asked = Meter(lab.node(1).id, "node1", "lab", lab.node(1).power_address, None)
    return bound(power.seen, asked, "off", lab.now + 5)


@case
def store__nodes__power__prune(lab: Lab) -> Call:
    lab.machine(1, "inactive")
    power.succeeded(lab.tx, cycled(lab), "on", OLD)
    return bound(power.prune, lab.now, 500)


@case
def nodes__readiness__answered(lab: Lab) -> Call:
    booting(lab)
    node = lab.node(1)
    check = readiness.Check(node.id, node.generation, node.name, MACHINE, 80, "")
    return bound(readiness.answered, check, lab.site.policy, lab.now + 9)


LEAF = Switch("leaf", "ovs", "unix:/run/ovs/db.sock", provisioning_vlan=10)


def plugged_in(lab: Lab) -> switches.SwitchTask:
    """Return the claimed switch of a port that is to be in another VLAN."""
    seen = f'<node><nic mac="{mac(1)}"><neighbour switch="leaf" port="p1"/></nic></node>'
    node = lab.machine(1, "inactive", attributes=seen)
    core_ports.sighted(lab.tx, node, seen, [mac(1)], (LEAF,), lab.now)
    core_ports.want(lab.tx, node, 20, lab.now)
    switches.began(lab.tx, "a", ["leaf"], lab.now)
    (task,) = switches.claim(lab.tx, "a", (LEAF,), (), 9, lab.now, 60.0)
    return task


@case
def nodes__switches__began(lab: Lab) -> Call:
    plugged_in(lab)
    return bound(switches.began, "a", ["leaf", "spine"], lab.now + 1)


@case
def nodes__switches__claim(lab: Lab) -> Call:
    plugged_in(lab)
    return bound(switches.claim, "b", (LEAF,), (), 9, lab.now + 100, 60.0)


@case
def nodes__switches__ended(lab: Lab) -> Call:
    task = plugged_in(lab)
    done = {port.id: switches.PortOutcome(10, vlan) for port, vlan in task.ports}
    return bound(switches.ended, task, done, "a switch", lab.now + 1)


@case
def nodes__switches__found(lab: Lab) -> Call:
    task = plugged_in(lab)
    stories.include(lab.tx, task.ports[0][0].node_id or 0)
    return bound(switches.found, task, [(port, 30) for port, _ in task.ports], lab.now + 1)


@case
def nodes__switches__failed(lab: Lab) -> Call:
    return bound(switches.failed, plugged_in(lab), "no answer", lab.now + 1)


@case
def nodes__switches__place_reported(lab: Lab) -> Call:
    seen = f'<node><nic mac="{mac(1)}"><neighbour switch="leaf" port="p1"/></nic></node>'
    lab.machine(1, "inactive", attributes=seen)
    site = replace(lab.site, switches=(LEAF,))
    return bound(switches.place_reported, site, 0, 10, lab.now + 1)


# ---------------------------------------------------------------- notices


def told(lab: Lab) -> None:
    group = groups.ensure(lab.tx, "physics", lab.now)
    groups.change(lab.tx, group.id, webhook="https://hooks.example.org/a")
    core_notices.add(
        lab.tx, kind="test", group_id=group.id, subject="s", about="About.", now=lab.now
    )


def delivered(lab: Lab) -> notices.Delivery:
    told(lab)
    (found,) = notices.claim(lab.tx, "a", (), lab.now, 60.0)
    return found


@case
def notices__notices__claim(lab: Lab) -> Call:
    told(lab)
    return bound(notices.claim, "a", (), lab.now, 60.0)


@case
def notices__notices__succeeded(lab: Lab) -> Call:
    return bound(notices.succeeded, delivered(lab), "200", lab.now + 1)


@case
def notices__notices__failed(lab: Lab) -> Call:
    return bound(notices.failed, delivered(lab), "500", False, True, lab.now + 1)


@case
def notices__webhook_feed__gather(lab: Lab) -> Call:
    group = groups.ensure(lab.tx, "site", lab.now)
    wanted = {"webhook": "https://h.example.org/", "events": ["vclusters"]}
    group_flows.change(lab.tx, group.name, wanted, now=lab.now)
    webhook_feed.gather(lab.tx, {}, lab.now)
    founded(lab)
    ids = webhook_feed.look(lab.tx, {})["vclusters"].ids
    return bound(webhook_feed.gather, {"vclusters": ids[-1]}, lab.now + 60)


@case
def notices__mail_choices__send_digests(lab: Lab) -> Call:
    ann = person(lab, email="ann@x.org", admin=True)
    who = Who("user:ann", admin=True, user_id=ann.id)
    chosen = {"switch": NoticeMail.DAILY}
    mail_choices.choose(lab.tx, who=who, chosen=chosen, now=lab.now)
    core_notices.add(lab.tx, kind="switch", group_id=None, subject="s", about="About.", now=lab.now)
    return bound(mail_choices.send_digests, 6, lab.now + 200_000)


# ---------------------------------------------------------------- people


def person(lab: Lab, name: str = "ann", **columns: Any) -> Any:
    return people.add(lab.tx, name, lab.now, password="x", **columns)


def signed_in(lab: Lab) -> Any:
    user = person(lab)
    return beginning(user)(lab.tx)


def beginning(user: Any) -> Call:
    who = {"user_id": user.id, "address": MACHINE, "browser": "b", "cookie": SECRET}
    return partial(signin.begin, **who, rules=RULES, now=NOW)


@case
def people__signin__attempt(lab: Lab) -> Call:
    person(lab)
    return partial(signin.attempt, name="ann", address=MACHINE, now=lab.now)


@case
def people__signin__failed(lab: Lab) -> Call:
    person(lab)
    return partial(signin.failed, name="ann", address=MACHINE, now=lab.now)


@case
def people__signin__unverified(lab: Lab) -> Call:
    person(lab)
    for ago in (2.0, 1.0):
        signin.attempt(lab.tx, name="ann", address=MACHINE, now=lab.now - ago)
    return partial(signin.unverified, name="ann", address=MACHINE, now=lab.now)


@case
def people__signin__right(lab: Lab) -> Call:
    user = person(lab)
    signin.attempt(lab.tx, name="ann", address=MACHINE, now=lab.now)
    return partial(
        signin.right, user_id=user.id, name="ann", address=MACHINE, rehashed="y", now=lab.now
    )


@case
def people__signin__begin(lab: Lab) -> Call:
    return beginning(person(lab))


@case
def people__signin__sign_out(lab: Lab) -> Call:
    signed_in(lab)
    return partial(signin.sign_out, cookie=SECRET, address=MACHINE, now=lab.now)


@case
def people__signin__vouched(lab: Lab) -> Call:
    known = Identity("ldap:1", "ldap", "ann", "Ann", "ann@example.org")
    return partial(signin.vouched, identity=known, create=True, address=MACHINE, now=lab.now)


@case
def store__people__signins__seen(lab: Lab) -> Call:
    return bound(signins.seen, signed_in(lab).id, lab.now + 90)


@case
def people__people__set_password(lab: Lab) -> Call:
    session = signed_in(lab)
    who = Who("user:ann", user_id=session.user_id)
    return partial(people_flows.set_password, who=who, password="y", but=None, now=lab.now)


@case
def people__tokens__of_password(lab: Lab) -> Call:
    wanted = {"name": "t", "token": SECRET}
    return partial(
        token_flows.of_password,
        user_id=person(lab).id,
        address=MACHINE,
        wanted=wanted,
        now=lab.now,
    )


def invited(lab: Lab) -> None:
    groups.ensure(lab.tx, "physics", lab.now)
    invitations.invite(
        lab.tx, digest=SECRET, group="physics", role="member", rules=RULES, who="x", now=lab.now
    )


@case
def people__invitations__accept(lab: Lab) -> Call:
    invited(lab)
    return partial(
        invitations.accept, digest=SECRET, name="eve", password="x", address=MACHINE, now=lab.now
    )


@case
def people__invitations__join(lab: Lab) -> Call:
    invited(lab)
    who = Who("user:ann", user_id=person(lab).id)
    return partial(invitations.join, digest=SECRET, who=who, now=lab.now)


@case
def people__directory_sync__record(lab: Lab) -> Call:
    user = person(lab, directory="ldap", subject="ldap:1")
    return partial(directory_sync.record, asked=[user], known={}, since=lab.now, now=lab.now + 5)


@case
def people__directory_sync__admit(lab: Lab) -> Call:
    known = Identity("ldap:1", "ldap", "ann", "Ann", "ann@example.org")
    return partial(
        directory_sync.admit, identities=[known], actor="ldap", posix=lab.site.posix, now=lab.now
    )


@case
def people__directory_sync__too_many(lab: Lab) -> Call:
    users = [person(lab, f"u{n}", directory="ldap", subject=f"ldap:{n}") for n in range(3)]
    names = [user.name for user in users]
    return partial(directory_sync.too_many, losers=names, asked=users, now=lab.now)


@case
def people__directory_sync__note(lab: Lab) -> Call:
    who = Who("user:root", admin=True)
    return partial(directory_sync.note, who=who, asked={"names": []}, now=lab.now)


# ---------------------------------------------------------------- scheduler


def founded(lab: Lab, name: str = "web", **more: Any) -> Any:
    """Return a vcluster that waits for nodes, of which there are three."""
    if not nodes.every(lab.tx):
        furnish(lab.tx, 3)
    given = {"size": 1, "group": "site"} | more
    asked = AskedVcluster(name=name, template="debian", **given)
    return owner_flows.create(lab.tx, flow_context(lab.site, lab.now), asked).value[0].vcluster


def waiting(lab: Lab) -> int:
    """Return a request that waits."""
    founded(lab)
    return int(lab.tx.scalars(select(t.node_requests.c.id)).one())


@case
def scheduler__apply_plan__waits(lab: Lab) -> Call:
    return bound(apply_plan.waits, waiting(lab), Refused("conflict", "no room"), lab.now + 1)


@case
def nodes__hold__watch(lab: Lab) -> Call:
    claims.name_database(lab.tx, "a 1.0")
    seen = claims.Progress("a 1.0", 0, 1, 1)
    return partial(hold.watch, seen=seen, name="a 2.0", now=lab.now)


@case
def store__claims__hold(lab: Lab) -> Call:
    return bound(claims.hold, "manager", "a", lab.now, 10.0)


@case
def store__claims__give_up(lab: Lab) -> Call:
    return bound(claims.give_up, claims.hold(lab.tx, "manager", "a", lab.now, 10.0))


@case
def scheduler__series__reserve(lab: Lab) -> Call:
    furnish(lab.tx, 3)
    week = 7 * 86400.0
    asked = AskedVcluster("course", 2, "debian", "site", lease=36000.0, starts_at=week)
    series.create(
        lab.tx,
        flow_context(lab.site, lab.now),
        asked,
        zone="UTC",
        days=[],
        count=None,
        last=None,
        create=owner_flows.create,
    )
    (series_id, start), *_ = series.due(lab.tx, lab.now)
    return partial(
        series.reserve,
        series_id=series_id,
        start=start,
        create=owner_flows.create,
        site=lab.site,
        now=lab.now,
    )


def expected(lab: Lab) -> list[StartRow]:
    return [StartRow(waiting(lab), lab.now + 99, "", None, None)]


@case
def scheduler__maintenance__run(lab: Lab) -> Call:
    lab.machine(1, "inactive")
    asked = AskedWindow("power feed", site=True, begins_at=lab.now + 5, ends_at=lab.now + 9)
    maintenance.plan(lab.tx, flow_context(lab.site, lab.now, "user:root"), asked=asked)
    now = lab.now + 6
    claim = claims.hold(lab.tx, "manager", "a", now, 10.0)
    assert claim is not None
    return partial(maintenance.run, claim=claim, site=lab.site, now=now)


@case
def scheduler__starts__tell(lab: Lab) -> Call:
    return bound(starts.tell, expected(lab), lab.now)


@case
def scheduler__starts__settle(lab: Lab) -> Call:
    starts.tell(lab.tx, expected(lab), lab.now)
    run_pass(lab.tx, lab.site, lab.now)
    return bound(starts.settle, lab.now + 1)


@case
def scheduler__usage__note(lab: Lab) -> Call:
    add_node(lab.tx, 1)
    first = usage.count(lab.tx, lab.now)
    assert first is not None
    usage.note(lab.tx, first)
    return bound(usage.note, usage.count(lab.tx, lab.now + 60))


# ---------------------------------------------------------------- VCMs, volumes, pruning


def enrolled(lab: Lab, ends_at: float | None = None) -> int:
    """Return the vcluster 'pool' of two nodes, whose VCM has the certificate 'a1'."""
    found = founded(lab, "pool", size=2)
    vcms.enrol(lab.tx, vcluster="pool", serial="a1", address="", now=lab.now, ends_at=ends_at)
    run_pass(lab.tx, lab.site, lab.now)
    return int(found.id)


def greeting(lab: Lab) -> Call:
    return partial(
        vcms.greet,
        vcluster="pool",
        serial="a1",
        address=MACHINE,
        about="test",
        seen=0,
        server="a",
        now=lab.now,
    )


@case
def vcms__vcms__greet(lab: Lab) -> Call:
    enrolled(lab)
    return greeting(lab)


@case
def vcms__certificates__renew(lab: Lab) -> Call:
    vcluster = enrolled(lab, lab.now + 86400)
    return partial(
        certificates.renew,
        vcluster_id=vcluster,
        epoch=greeting(lab)(lab.tx).epoch,
        serial="b2",
        ends_at=lab.now + 9e9,
        address=MACHINE,
        now=lab.now,
    )


@case
def vcms__vcms__admit(lab: Lab) -> Call:
    vcluster = enrolled(lab)
    node = next(each for each in nodes.every(lab.tx) if each.hostname == "n1")
    vcm_rows.enrol(lab.tx, vcluster, serial="", address="", head="n1", now=lab.now)
    vcm, digest = vcm_rows.get(lab.tx, vcluster), hashlib.sha256(b"come").hexdigest()
    assert vcm is not None
    vcm_rows.invite(lab.tx, vcm, node_id=node.id, digest=digest, expires_at=lab.now + 600)
    return partial(
        vcms.admit,
        vcluster="pool",
        invitation="come",
        address=vcm_rows.addresses(lab.tx, [node.id])[node.id],
        serial="5e",
        key=SECRET,
        now=lab.now,
    )


@case
def vcms__certificates__look(lab: Lab) -> Call:
    enrolled(lab, lab.now + 86400)
    return bound(certificates.look, lab.now + 86400, lab.now)


@case
def store__vcms__gone(lab: Lab) -> Call:
    vcluster = enrolled(lab)
    return bound(vcms.gone, vcluster, "a", greeting(lab)(lab.tx).epoch, lab.now + 1)


@case
def store__vcms__started(lab: Lab) -> Call:
    enrolled(lab)
    greeting(lab)(lab.tx)
    return bound(vcms.started, "a", lab.now + 1)


def asked_for(lab: Lab) -> tuple[Any, int]:
    """Return the site with a file server, and a volume that is to be made there."""
    server = FileServer("nas", "ganesha", "10.77.0.5", "/srv/cod")
    site = replace(lab.site, fileservers=(server,), volumes=VolumeRules(quota=2**50, homes=False))
    groups.ensure(lab.tx, "site", 0.0)
    made = volume_flows.create(
        lab.tx, flow_context(site, lab.now), name="data", size=2**30, group="site"
    )
    return site, made.volume.id


def exported(lab: Lab) -> Any:
    site, _ = asked_for(lab)
    (task,) = exports.claim(lab.tx, "a", {"nas": 9}, site, lab.now, 60.0)
    return task


@case
def volumes__exports__began(lab: Lab) -> Call:
    exported(lab)
    return bound(exports.began, "a", lab.now + 1)


@case
def volumes__exports__claim(lab: Lab) -> Call:
    site, _ = asked_for(lab)
    return bound(exports.claim, "a", {"nas": 9}, site, lab.now, 60.0)


@case
def volumes__exports__succeeded(lab: Lab) -> Call:
    return bound(exports.succeeded, exported(lab), "btrfs", lab.now + 1)


@case
def volumes__exports__failed(lab: Lab) -> Call:
    return bound(exports.failed, exported(lab), "no room", lab.now + 1)


@case
def volumes__exports__compared(lab: Lab) -> Call:
    task = exported(lab)
    exports.succeeded(lab.tx, task, "btrfs", lab.now)
    return bound(exports.compared, "nas", {}, lab.now + 9)


def keytab_asked(lab: Lab) -> KeytabTask:
    """Machine 1 is being primed with a template that asks for a keytab."""
    rules = KerberosRules("EXAMPLE.ORG", keytab_command="/etc/cod/keytab")
    lab.site = replace(lab.site, kerberos=rules)
    primed(lab)
    document = TEMPLATE.replace('seed="nocloud"', 'seed="nocloud" kerberos="yes"')
    keyed = lab.template(document=document, revision=9)
    lab.tx.execute(t.nodes.update().values(template_id=keyed))
    (task,) = keytabs.due(lab.tx, lab.site, lab.now)
    return task


@case
def nodes__keytabs__made(lab: Lab) -> Call:
    return bound(keytabs.made, keytab_asked(lab), b"sealed", lab.site, lab.now)


@case
def nodes__keytabs__failed(lab: Lab) -> Call:
    return bound(keytabs.failed, keytab_asked(lab), "no KDC", lab.now)


@case
def nodes__keytabs__removed(lab: Lab) -> Call:
    task = keytab_asked(lab)
    keytabs.made(lab.tx, task, b"sealed", lab.site, lab.now)
    return bound(keytabs.removed, task)


@case
def pruning__prune(lab: Lab) -> Call:
    person(lab)
    for _ in range(2):  # the newest row of a table stays
        signin.failed(lab.tx, name="ann", address=MACHINE, now=OLD)
    return bound(pruning.prune, "audit", lab.now)


@case
def pruning__forget_machines(lab: Lab) -> Call:
    nodes.change(lab.tx, lab.machine(1), name=f"node-{mac(1).replace(':', '')}")
    return bound(pruning.forget_machines, lab.now + 1e6)


# ---------------------------------------------------------------- the verbs of NMP


def verb(body: Callable[[Lab, int], b.Body]) -> Callable[[Lab], Call]:
    """Return the case of a message of a VCM, which has two nodes."""

    def make(lab: Lab) -> Call:
        vcluster = enrolled(lab)
        said = body(lab, vcluster)
        peer = verbs.VcmPeer("pool", vcluster)
        return partial(verbs.answer, body=said, peer=peer, site=lab.site, now=lab.now + 1)

    return make


def open_request(lab: Lab, vcluster: int) -> int:
    """Return a request of the VCM that waits."""
    asked = AskedNodes([AskedTuple(9, "", "")])
    context = flow_context(lab.site, lab.now, key=vcms.request_key(vcluster, "k"))
    done = requests.submit(lab.tx, context, vcluster="pool", asked=asked)
    return int(done.value.request.id)


def grown(lab: Lab, vcluster: int) -> None:
    """Let the VCM have all three nodes: one more than its vcluster was created with."""
    owner_flows.resize(lab.tx, flow_context(lab.site, lab.now), name="pool", size=3)
    run_pass(lab.tx, lab.site, lab.now)
    arrive(lab.tx, lab.now)
    told = vcm_rows.unacknowledged(lab.tx, {vcluster: 0})
    vcm_rows.acknowledge(lab.tx, vcluster, told[-1].sequence)


def release(lab: Lab, vcluster: int) -> b.ReleaseNodes:
    grown(lab, vcluster)
    return b.ReleaseNodes((b.Named("n3"),))


def answer(lab: Lab, vcluster: int) -> b.ReclaimAnswer:
    grown(lab, vcluster)
    policy = replace(lab.site.policy, inertia=0.0, reclaim_grace=20.0)
    lab.site = replace(lab.site, policy=policy)
    groups.add(lab.tx, "top", lab.now, priority=10)
    founded(lab, "top", group="top")
    run_pass(lab.tx, lab.site, lab.now)
    (found,) = reclaims.open_(lab.tx, vcluster)
    return b.ReclaimAnswer(found.id, (b.Named("n3"),))


VERBS: dict[type[Any], Callable[[Lab, int], b.Body]] = {
    b.RequestNodes: lambda lab, _: b.RequestNodes("k", (b.Wanted(1),)),
    b.RequestStatus: lambda lab, vcluster: b.RequestStatus(open_request(lab, vcluster)),
    b.Withdraw: lambda lab, vcluster: b.Withdraw(open_request(lab, vcluster)),
    b.ReleaseNodes: release,
    b.ReclaimAnswer: answer,
    b.ParkNodes: lambda lab, _: b.ParkNodes((b.Named("n1"),)),
    b.MaintenanceStatus: lambda lab, _: b.MaintenanceStatus(),
    b.Extend: lambda lab, _: b.Extend(9e5),
    b.Status: lambda lab, _: b.Status(),
}
CASES |= {f"vcms.vcms.spoken {each.__name__}": verb(VERBS[each]) for each in VERBS}
