"""Proximity of nodes on the network: a proposal of blocks, by the switches and relays of nodes.
Pure.

The first of these that is known decides:

- the switch that the node's boot NIC sees by LLDP (`<neighbour>` of its report);
- option 82's remote id, which names the switch that added the option (RFC 3046 §3.2);
- the relay's address with option 82's circuit id without its port: 'Gi1/0/7' and 'Gi1/0/9' are
  ports of one line card, or of one switch of a stack;
- the relay's address alone.

If all nodes with a remote id that see a switch by LLDP see the same one, the remote id means that
switch. A node that is in a block stays there, as the administrator has decided. If some nodes of a
switch are in blocks already, the others are proposed for the block that most of them are in.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

LONGEST_NAME = 63


@dataclass(frozen=True, slots=True)
class Sighting:
    """Known location of a node. `circuit` and `remote` in hex, as in the node's row; `switch` and
    `port` by LLDP; `block` is the name of its block."""

    node: str
    block: str | None = None
    relay: str | None = None
    circuit: str | None = None
    remote: str | None = None
    switch: str | None = None
    port: str | None = None


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """A node that is proposed for a block, and why."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Proposed:
    """A block with the nodes to be put into it.

    exists  whether the block exists already
    about   what its nodes have in common, such as 'switch tor-7'
    """

    name: str
    exists: bool
    about: str
    places: tuple[BlockPlace, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposal. `blocks`: in the order of their names; `unknown`: names of the nodes in no block
    whose location is unknown."""

    blocks: tuple[Proposed, ...]
    unknown: tuple[str, ...]


def propose(sightings: Iterable[Sighting], blocks: Iterable[str]) -> Proposal:
    """Return a proposal for all nodes that are in no block. `blocks`: names of existing blocks."""
    seen = sorted(sightings, key=lambda each: each.node)
    # remote ids whose nodes all see one switch by LLDP
    named: dict[str, set[str]] = defaultdict(set)
    for each in seen:
        if each.remote and each.switch:
            named[each.remote].add(each.switch)
    switches = {remote: names.pop() for remote, names in named.items() if len(names) == 1}
    groups: dict[tuple[str, str], list[Sighting]] = defaultdict(list)
    unknown = []
    for each in seen:
        key = _key(each, switches)
        if key is not None:
            groups[key].append(each)
        elif each.block is None:
            unknown.append(each.node)
    taken = set(blocks)
    proposed: dict[str, Proposed] = {}
    for key in sorted(groups):
        made = _proposed(key, groups[key], taken)
        if made is not None:
            if one := proposed.get(made.name):  # nodes of several switches go to one block
                places = tuple(sorted((*one.places, *made.places), key=lambda place: place.node))
                made = replace(one, about=f"{one.about}, {made.about}", places=places)
            proposed[made.name] = made
    return Proposal(tuple(proposed[name] for name in sorted(proposed)), tuple(unknown))


def _key(each: Sighting, switches: Mapping[str, str]) -> tuple[str, str] | None:
    """Return a key that nodes near each other have in common: (kind of evidence, its text); None:
    the location is unknown."""
    if each.switch or each.remote in switches:
        return "switch", each.switch or switches[each.remote or ""]
    if each.remote:
        return "switch", remote_id(each.remote)
    if each.relay and each.circuit:
        return "circuit", f"{each.relay} {circuit_id(each.circuit)[0]}"
    return ("relay", each.relay) if each.relay else None


def _proposed(key: tuple[str, str], group: Sequence[Sighting], taken: set[str]) -> Proposed | None:
    new = [each for each in group if each.block is None]
    if not new:
        return None
    home = Counter(each.block for each in group if each.block is not None)
    name = (
        min(home, key=lambda block: (-home[block], block)) if home else _free(_label(key[1]), taken)
    )
    taken.add(name)
    about = {"switch": "switch {}", "circuit": "relay {}", "relay": "relay {}"}[key[0]].format(
        key[1]
    )
    return Proposed(
        name, bool(home), about, tuple(BlockPlace(each.node, _why(each)) for each in new)
    )


def _why(each: Sighting) -> str:
    if each.switch:
        return f"sees switch {each.switch}, port {each.port}"
    parts = [f"switch {remote_id(each.remote)}"] if each.remote else []
    parts += [f"relay {each.relay}"] if each.relay else []
    if each.circuit:
        module, port = circuit_id(each.circuit)
        parts.append(f"circuit {module}{f', port {port}' if port else ''}")
    return "asked through " + ", ".join(parts)


def _label(text: str) -> str:
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:LONGEST_NAME].strip("-")
    return label or "block"


def _free(label: str, taken: set[str]) -> str:
    name, number = label, 1
    while name in taken:
        number += 1
        name = f"{label[: LONGEST_NAME - len(str(number)) - 1]}-{number}"
    return name


# ---------------------------------------------------------------- what switches write


def remote_id(hexadecimal: str) -> str:
    """Return a remote id for people: a MAC, text, or the bytes in hex, without the type and length
    that Cisco puts in front."""
    value = bytes.fromhex(hexadecimal)
    if len(value) > 2 and value[0] in (0, 1) and value[1] == len(value) - 2:
        value = value[2:]
    return value.hex(":") if len(value) == 6 and not _is_text(value) else _readable(value)


def circuit_id(hexadecimal: str) -> tuple[str, str]:
    """Return a circuit id without its port, and the port; '' if the port cannot be recognised.

    'Gi1/0/7' -> ('Gi1/0', '7'); 'ge-0/0/3.0:users' -> ('ge-0/0', '3'); 'Ethernet17' -> ('Ethernet',
    '17'); Cisco's binary form (type 0, length 4, VLAN, module, port) -> ('module 1', '7').
    """
    value = bytes.fromhex(hexadecimal)
    if len(value) == 6 and value[:2] == b"\0\4":
        return f"module {value[4]}", str(value[5])
    if len(value) > 2 and value[0] == 1 and value[1] == len(value) - 2:
        value = value[2:]
    text = _readable(value)
    found = re.search(r"([A-Za-z-]*[0-9]+(?:/[0-9]+)*)/([0-9]+)", text)
    found = found or re.match(r"([A-Za-z][A-Za-z-]*)([0-9]+)", text)
    return (found[1], found[2]) if found else (text, "")


def _is_text(value: bytes) -> bool:
    return all(32 < byte < 127 or byte == 32 for byte in value)


def _readable(value: bytes) -> str:
    value = value.rstrip(b"\0")
    return value.decode("ascii") if value and _is_text(value) else f"0x{value.hex()}"
