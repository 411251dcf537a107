"""What `cod doctor` reads from the rules of a firewall, as `nft -j list ruleset` prints them."""

from __future__ import annotations

from typing import Any

import pytest

from cod.doctor.checks.firewall import is_open
from cod.doctor.checks.ports import Port

CHAIN = {"family": "inet", "table": "filter"}


def payload(protocol: str, right: Any) -> dict[str, Any]:
    left = {"payload": {"protocol": protocol, "field": "dport"}}
    return {"match": {"op": "==", "left": left, "right": right}}


def meta(key: str, right: Any, op: str = "==") -> dict[str, Any]:
    return {"match": {"op": op, "left": {"meta": {"key": key}}, "right": right}}


ACCEPT: dict[str, Any] = {"accept": None}
RULES: list[tuple[str, list[dict[str, Any]]]] = [
    (
        "input",
        [
            {
                "match": {
                    "op": "in",
                    "left": {"ct": {"key": "state"}},
                    "right": ["established", "related"],
                }
            },
            ACCEPT,
        ],
    ),
    ("input", [meta("iif", "lo"), ACCEPT]),
    ("input", [meta("iifname", "eth1"), payload("udp", {"set": [67, 69]}), ACCEPT]),
    ("input", [{"counter": {"packets": 1}}, payload("tcp", {"range": [8069, 8072]}), ACCEPT]),
    ("input", [payload("udp", 53), {"drop": None}]),
    ("input", [meta("l4proto", {"set": ["tcp", "udp"]}), payload("th", 53), ACCEPT]),
    ("input", [{"xt": None}, ACCEPT]),
    ("input", [{"jump": {"target": "more"}}]),
    ("more", [payload("tcp", 8443), ACCEPT]),
    ("more", [{"reject": {"type": "icmpx"}}]),
]


def ruleset(policy: str) -> list[Any]:
    chains = [
        {"chain": CHAIN | {"name": "input", "hook": "input", "policy": policy}},
        {"chain": CHAIN | {"name": "more"}},
    ]
    rules = [{"rule": CHAIN | {"chain": name, "expr": expr}} for name, expr in RULES]
    return [{"metainfo": {}}, *chains, *rules]


@pytest.mark.parametrize(
    ("kind", "number", "passes"),
    [
        ("UDP", 67, True),
        ("UDP", 69, True),
        ("TCP", 8070, True),
        ("UDP", 53, False),
        ("TCP", 53, True),
        ("TCP", 8443, True),
        ("TCP", 80, False),
        ("TCP", 69, False),
    ],
)
def test_a_port_is_open_where_a_rule_accepts_it(kind: str, number: int, passes: bool) -> None:
    port = Port("x", kind, "0.0.0.0", number)
    assert is_open(ruleset("drop"), port, {"eth1"}) == passes


def test_another_interface_is_not_the_nodes() -> None:
    dhcp = Port("DHCP", "UDP", "0.0.0.0", 67)
    assert not is_open(ruleset("drop"), dhcp, {"eth2"})
    accepting = [each for each in ruleset("accept") if "rule" not in each]
    assert is_open(accepting, dhcp, {"eth2"})
    dropping = [each for each in ruleset("drop") if "rule" not in each]
    assert not is_open(dropping, dhcp, {"eth2"})
    assert is_open([], dhcp, {"eth2"})
