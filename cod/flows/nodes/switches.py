"""Sessions with switches: which ports to change or to verify now, and the outcomes.

One server at a time has a session with a switch, by a claim that outlives the longest session. All
due ports are changed in one session, and read back. If the server's claim has run out, its changes
are not known for certain, and its ports are read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cod import notice_texts
from cod.core import notices
from cod.core.networks import switch_ports
from cod.core.nodes import outages, stories
from cod.model import Effect, Site, Switch, SwitchPort
from cod.policy.nodes import switch_ports as policy
from cod.states import NODE_RULES, NodeState
from cod.store.claims import Lost
from cod.store.engine import Tx
from cod.store.nodes import conflicts, nodes
from cod.store.nodes import switch_ports as ports
from cod.store.nodes import switches as store

LINGERS = 5.0  # seconds that a session of a server that died may still take
FAILURES_BEFORE_NOTICE = 5  # sessions that fail in a row before a notice: half a minute
BATCH = 64  # ports that one session changes or verifies
LATE = 86_400.0  # seconds after which a switch no longer makes a change that it was asked for
MOVED = (Effect("wake", "orders"), Effect("wake", "manager"))
NEIGHBOUR = "<neighbour "


@dataclass(frozen=True, slots=True)
class SwitchTask:
    """A claimed switch, and the ports to change or to verify in this session: each with the VLAN
    that it should be in."""

    switch: Switch
    epoch: int
    ports: tuple[tuple[SwitchPort, int], ...]


@dataclass(frozen=True, slots=True)
class PortOutcome:
    """Outcome of a session for one port.

    found    the VLAN that it was in; None: could not be read
    vlan     the VLAN that it is in now; None: not known
    error    why it is not in the VLAN that it should be in; '' when it is
    lasting  trying again is useless
    left     it was left in the VLAN that it was in, because its node is held
    """

    found: int | None
    vlan: int | None
    error: str = ""
    lasting: bool = False
    left: bool = False


def began(tx: Tx, server: str, names: Sequence[str], now: float) -> None:
    """Shorten the claims of a server that has just started: it has no session, though one that it
    had before may still last for a moment. `names` are the site's switches."""
    store.keep(tx, names)
    store.shorten(tx, server, now + LINGERS)
    ports.forget_unused(tx, names)


def place_reported(tx: Tx, site: Site, after: int, limit: int, now: float) -> int | None:
    """Record the switch ports that the stored hardware reports of the next `limit` nodes with ids
    above `after` name, by the present switches of the site file. Return the last node's id; None
    after the last node."""
    found = nodes.reported_after(tx, after, limit, holding=NEIGHBOUR)
    for node in found:
        assert node.attributes is not None
        macs = [each.mac for each in policy.neighbours(node.attributes)]
        known = nodes.by_macs(tx, macs)
        own = [mac for mac in macs if mac in known and known[mac].id == node.id]
        for seen in policy.neighbours(node.attributes):
            place = policy.place(site.switches, seen.switch, seen.port)
            if place is not None and seen.mac in own:
                switch_ports.connect(
                    tx, node, seen.mac, *place, source="lldp", now=now, seen_at=node.reported_at
                )
    return found[-1].id if found else None


def switch_of(tx: Tx, mac: str) -> str | None:
    """Return the name of the switch of the node with that MAC, which has just booted the
    trampoline; '' if the switch is not known, None if there is no such node in the trampoline."""
    node = nodes.by_mac(tx, mac)
    if node is None or node.state != NodeState.TRAMPOLINE:
        return None
    return (node.home_port or "").partition(" ")[0]


def is_due(tx: Tx, now: float) -> bool:
    """Return whether a session with any switch may be wanted now."""
    return bool(ports.switches_due(tx, now)) or store.is_check_wanted(tx, now)


def claim(
    tx: Tx,
    server: str,
    switches: Sequence[Switch],
    busy: Sequence[str],
    room: int,
    now: float,
    lease: float,
) -> list[SwitchTask]:
    """Claim at most `room` switches that have something due, without those in `busy`, for `lease`
    seconds."""
    due = ports.switches_due(tx, now)
    tasks: list[SwitchTask] = []
    for row in store.every(tx):
        switch = policy.named(switches, row.name)
        # a switch that is away is asked until it answers: its ports are not used before
        away = row.failures > 0 and row.next_at <= now
        wanted = row.check_wanted or row.name in due or away
        if switch is None or not wanted or row.name in busy or len(tasks) >= room:
            continue
        claimed = store.claim(tx, row, server, now, now + lease)
        if claimed is not None:
            batch = tuple(
                (port, switch.provisioning_vlan if port.wanted_vlan is None else port.wanted_vlan)
                for port in ports.due(tx, row.name, now, BATCH)
            )
            tasks.append(SwitchTask(switch, claimed.epoch, batch))
    return tasks


def found(
    tx: Tx, task: SwitchTask, elsewhere: Sequence[tuple[SwitchPort, int]], now: float
) -> frozenset[int]:
    """Record the VLANs in which a session has found ports that it is about to change. These VLANs
    are not given to others, even if the switch said earlier that the ports had left them. Return
    the ids of the ports that the session is to leave there, because their nodes are held. Raises
    `claims.Lost` if another session has begun."""
    row = store.get(tx, task.switch.name, lock=True)
    if row is None or row.epoch != task.epoch:
        raise Lost(f"another session with switch {task.switch.name} has begun")
    for port, vlan in elsewhere:
        ports.outcome(tx, port, applied_vlan=vlan)
    home = task.switch.provisioning_vlan
    return frozenset(
        port.id for port, vlan in elsewhere if stories.by_switch(tx, port, vlan, home, now)
    )


def ended(
    tx: Tx, task: SwitchTask, outcomes: Mapping[int, PortOutcome], about: str, now: float
) -> tuple[Effect, ...]:
    """Record a session's outcome for each port, by the ports' ids. Return the services to wake."""
    name = task.switch.name
    if not store.ended(
        tx,
        name,
        task.epoch,
        failures=0,
        reason="",
        next_at=0.0,
        about=about[:200],
        tried_at=now,
        answered_at=now,
    ):
        ports.verify_soon(tx, list(outcomes), now)
        return (switch_ports.WAKE,)
    outages.end(tx, f"switch {name}", notice_texts.switch_back(name), now)
    more = len(task.ports) == BATCH
    for port, vlan in task.ports:
        _note(tx, task.switch, port, vlan, outcomes[port.id], now)
    return (*MOVED, *((switch_ports.WAKE,) if more else ()))


def failed(tx: Tx, task: SwitchTask, error: str, now: float) -> tuple[Effect, ...]:
    """Record that a session failed as a whole: the switch did not answer, or refused the account.
    Return the services to wake."""
    row = store.get(tx, task.switch.name)
    if row is not None and (row.epoch, row.tried_at) == (task.epoch, now):
        return MOVED  # an earlier run of this flow has been committed
    failures = 1 if row is None else row.failures + 1
    if not store.ended(
        tx,
        task.switch.name,
        task.epoch,
        failures=failures,
        reason=error,
        tried_at=now,
        next_at=now + policy.pause(failures),
    ):
        ports.verify_soon(tx, [port.id for port, _ in task.ports], now)
        return ()
    for port, vlan in task.ports:
        _note(tx, task.switch, port, vlan, PortOutcome(None, None, error), now, reached=False)
    waiting = [
        node
        for port, _ in task.ports
        if port.pending and port.node_id is not None and (node := nodes.get(tx, port.node_id))
    ]
    for node in waiting:
        if NODE_RULES[NodeState(node.state)].kind == "motion" and not node.waits_for:
            nodes.change(tx, node, waits_for=f"switch {task.switch.name}", waits_since=now)
    if failures == FAILURES_BEFORE_NOTICE and waiting:
        names = [node.name for node in waiting]
        notice = notice_texts.switch_away(task.switch.name, names, error)
        outages.begin(tx, f"switch {task.switch.name}", notice, now)
    return MOVED


def _note(
    tx: Tx,
    switch: Switch,
    port: SwitchPort,
    vlan: int,
    outcome: PortOutcome,
    now: float,
    *,
    reached: bool = True,
) -> None:
    """Record the outcome for a port, unless there is a newer wish for it. If the switch was not
    `reached`, the wish is not given up."""
    strayed = not port.pending and outcome.found is not None and outcome.found != vlan
    if strayed:
        _note_stray(tx, switch, port, vlan, outcome, now)
    seen = {} if outcome.vlan is None else {"applied_vlan": outcome.vlan, "verified_at": now}
    if outcome.left:  # it is looked at again until its node is not held any more; tries begin then
        next_at = now + policy.pause(port.attempts + 1)
        seen |= {"attempts": port.attempts + 1, "wished_at": now, "next_at": next_at}
        ports.outcome(tx, port, reason=outcome.error, **seen)
        return
    if not outcome.error:
        ports.outcome(
            tx,
            port,
            applied_seq=port.seq,
            attempts=0,
            reason="",
            given_up=False,
            next_at=_check_at(switch, port, now, strayed=strayed),
            corrected_at=now if strayed else port.corrected_at,
            **seen,
        )
        return
    attempts = port.attempts + 1
    columns: dict[str, Any] = {"attempts": attempts, "reason": outcome.error, **seen}
    if strayed:  # it is in a wrong VLAN: putting it back is a wish like any other
        held = ports.get(tx, port.id, lock=True)
        if held is not None and held.seq == port.seq:
            renewed = ports.wish(tx, held, port.wanted_vlan, now)
            columns |= {"attempts": 1, "next_at": now + policy.pause(1)}
            ports.change(tx, renewed, **columns)
    elif not port.pending:  # it could not be read: it counts as in the VLAN that COD put it in
        later = now + max(policy.pause(attempts), min(switch.verify, policy.LONGEST_PAUSE))
        is_over = port.wanted_vlan is None and outcome.lasting  # COD need not read it any more
        ports.outcome(tx, port, next_at=None if is_over else later, **columns)
    else:
        pause: float | None = policy.pause(attempts)
        if reached:
            elapsed = now - port.wished_at
            pause = None if outcome.lasting else policy.retry_after(attempts, elapsed)
        columns["next_at"] = None if pause is None else now + pause
        if ports.outcome(tx, port, given_up=pause is None, **columns) and pause is None:
            _tell_given_up(tx, switch, port, vlan, outcome.error, now)


def _check_at(switch: Switch, port: SwitchPort, now: float, *, strayed: bool) -> float | None:
    """Return when a port that is in its VLAN is read again; None: never. Back in its provisioning
    VLAN, a port is read at pauses that double, for a day: the switch may still make a change from a
    session that was given up."""
    if port.pending or strayed or port.wanted_vlan is not None:
        return now + switch.verify
    back = now - port.wished_at
    return now + max(back, switch.verify) if back < LATE else None


def _note_stray(
    tx: Tx, switch: Switch, port: SwitchPort, vlan: int, outcome: PortOutcome, now: float
) -> None:
    about = (
        f"port {port.port} of switch {switch.name} was in VLAN {outcome.found} where COD had put it"
        f" in VLAN {vlan}; {outcome.error or 'it was put back'}"
    )
    conflicts.add_once(
        tx, "switch", about, now, within=switch_ports.AGAIN, same=("about",), mac=port.mac
    )


def _tell_given_up(
    tx: Tx, switch: Switch, port: SwitchPort, vlan: int, error: str, now: float
) -> None:
    node = None if port.node_id is None else nodes.get(tx, port.node_id)
    notice = notice_texts.port_given_up(
        switch.name, port.port, node.name if node else "", vlan, error
    )
    notices.add(tx, **notice, group_id=None, now=now)
