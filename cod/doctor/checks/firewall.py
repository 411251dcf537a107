"""Check of the host's firewall: ports that the server opens, but that no rule of nftables accepts
packets for.

iptables writes nftables' rules, too. Only matches of ports, protocols and interfaces are
understood. A rule with any other match counts as one that accepts nothing.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cod.doctor.checks.ports import Port, wanted
from cod.doctor.finding import GOOD, UNSEEN, WARNING, Context, Finding

TEXTS = ("drop", "reject")


def findings(context: Context) -> Iterator[Finding]:
    if shutil.which("nft") is None:
        yield Finding(
            UNSEEN,
            "nft is not installed: whether a firewall drops packets is not looked at",
            "apt-get install nftables",
        )
        return
    done = subprocess.run(
        ["nft", "-j", "list", "ruleset"], capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode:
        yield Finding(
            UNSEEN,
            f"nft cannot list the rules: {done.stderr.strip().splitlines()[:1]}",
            "run `cod doctor` as root",
        )
        return
    rules = json.loads(done.stdout)["nftables"]
    interfaces = {subnet.interface for subnet in context.site.subnets if subnet.interface}
    closed = [str(port) for port in wanted(context) if not is_open(rules, port, interfaces)]
    if closed:
        yield Finding(
            WARNING,
            f"the host's firewall drops what arrives, and no rule accepts {'; '.join(closed)}",
            "accept these ports on the nodes' interfaces, in /etc/nftables.conf or by the"
            " firewall's own program",
        )
    else:
        yield Finding(GOOD, "it drops nothing that the server's ports are to get")


def is_open(rules: Sequence[Any], port: Port, interfaces: set[str]) -> bool:
    """Return whether packets to the port pass every chain of the hook `input`. `rules` are as `nft
    -j list ruleset` prints them."""
    chains = {_place(each["chain"]): each["chain"] for each in rules if "chain" in each}
    by_chain: dict[tuple[str, str, str], list[Any]] = {}
    for each in rules:
        if "rule" in each:
            rule = each["rule"]
            key = (rule["family"], rule["table"], rule["chain"])
            by_chain.setdefault(key, []).append(rule["expr"])
    for place, chain in chains.items():
        if chain.get("hook") == "input" and place[0] in ("ip", "inet"):
            verdict = _verdict(by_chain, place, port, interfaces, 0) or chain.get("policy")
            if verdict in TEXTS:
                return False
    return True


def _place(chain: Mapping[str, str]) -> tuple[str, str, str]:
    return chain["family"], chain["table"], chain["name"]


def _verdict(
    by_chain: Mapping[tuple[str, str, str], list[Any]],
    place: tuple[str, str, str],
    port: Port,
    interfaces: set[str],
    depth: int,
) -> str | None:
    """Return the verdict of a chain on a packet to the port; None if the packet passes the chain's
    end without a verdict."""
    for expressions in by_chain.get(place, ()):
        if depth > 20 or not all(
            _matches(each["match"], port, interfaces) if "match" in each else _is_harmless(each)
            for each in expressions
        ):
            continue
        for each in expressions:
            for word in ("accept", *TEXTS, "return"):
                if word in each:
                    return None if word == "return" else word
            for word in ("jump", "goto"):
                if word in each:
                    target = (*place[:2], each[word]["target"])
                    verdict = _verdict(by_chain, target, port, interfaces, depth + 1)
                    if verdict or word == "goto":
                        return verdict
    return None


def _is_harmless(expression: Mapping[str, Any]) -> bool:
    """Return whether an expression never stops the evaluation of its rule: a verdict, a counter, a
    log."""
    known = {"accept", *TEXTS, "return", "jump", "goto", "counter", "log", "comment"}
    return expression.keys() <= known


def _matches(match: Mapping[str, Any], port: Port, interfaces: set[str]) -> bool:
    """Return whether a packet to the port from the nodes' network matches; False if that is not
    known."""
    left, right = match["left"], match["right"]
    kind = port.kind.lower()
    if "payload" in left:
        payload = left["payload"]
        if payload.get("field") == "dport" and payload.get("protocol") in (kind, "th"):
            fits = _holds(right, port.number)
        elif payload.get("field") == "protocol":
            fits = _holds(right, kind)
        else:
            return False
    elif left.get("meta", {}).get("key") in ("iifname", "iif"):
        fits = any(_holds(right, name) for name in interfaces)
    elif left.get("meta", {}).get("key") in ("l4proto", "nfproto", "protocol"):
        fits = _holds(right, kind) or _holds(right, "ipv4") or _holds(right, "ip")
    elif left.get("ct", {}).get("key") == "state":
        fits = _holds(right, "new")
    else:
        return False
    return fits if match["op"] in ("==", "in") else not fits


def _holds(right: Any, value: str | int) -> bool:
    """Return whether the right side of a match has the value: as a single value, in a list, set or
    range, or by a name that ends with a star."""
    if isinstance(right, dict):
        if "range" in right:
            first, last = right["range"]
            return isinstance(value, int) and first <= value <= last
        return _holds(right.get("set", []), value)
    if isinstance(right, list):
        return any(_holds(each, value) for each in right)
    if isinstance(right, str) and right.endswith("*") and isinstance(value, str):
        return value.startswith(right[:-1])
    return bool(right == value)
