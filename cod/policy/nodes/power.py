"""Execution of a node's power action: by which driver, with which command, and when a failed
command is tried again.

Escalation. An action has a `stage`: the number of commands that its machine has accepted without
carrying them out. A machine is asked to shut down before it is switched off, if there is time for
that. A machine that does not switch on is switched off and on. A command that was not accepted (the
BMC does not answer) does not count, and is tried again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from cod.model import Account, Meter, Node, PowerRule
from cod.states import UNAPPROVED

# seconds after which a failing action is given up: a BMC's firmware update takes ten minutes
BUDGET = 1800.0
FIRST_PAUSE = 2.0  # seconds after the first failure, twice as long after each further one
LONGEST_PAUSE = 60.0
SILENT_PAUSE = 300.0  # after no answer for BUDGET seconds
ASK_SYSTEM = 5  # times that a system is asked to shut down: a minute and a half
ASK_AGENT = 1  # the trampoline's agent, which is told in parallel, needs seconds
ASK_ON = 2
TROUBLE = "power: "  # the beginning of a node's reason that is about its power
FOUND_OFF = "its power driver says that it is off, and COD did not switch it off"
"""The reason of a node that is in use although it is off."""
_ADDRESS = re.compile(
    r"\b\d{1,3}(\.\d{1,3}){3}\b|(?<![\w:])[\da-f:]*:[\da-f]*:[\da-f:]*(?![\w:])", re.IGNORECASE
)


def rule_for(rules: Iterable[PowerRule], name: str, mac: str) -> tuple[str, str, str | None]:
    """Return (driver, address, account) of the first rule whose pattern matches `name` or `mac`;
    ('none', '', None) if none does.

    The rule's address may name {name} and {mac}.
    """
    for rule in rules:
        if fnmatchcase(name, rule.match) or fnmatchcase(mac, rule.match.lower()):
            return rule.driver, rule.address.format(name=name, mac=mac), rule.account
    return "none", "", None


def hands_nonce(accounts: Iterable[Account], name: str | None) -> bool:
    """Return whether BMCs with the account of that name give each boot a nonce."""
    return any(each.name == name and each.boot_nonce for each in accounts)


def needs_nonce(node: Node, accounts: Iterable[Account]) -> bool:
    """Return whether the node must show a nonce to get its boot secret. A machine that waits for
    approval has no nonce, because COD did not order its boot."""
    return node.state not in UNAPPROVED and hands_nonce(accounts, node.power_account)


def meter(node: Node) -> Meter:
    """Return by what to ask about the node's power."""
    return Meter(node.id, node.name, node.power_driver, node.power_address, node.power_account)


def without_address(error: str, address: str) -> str:
    """Return a driver's error for the node's holders: without the address of the BMC or power
    switch. Administrators see the whole error with the node's power actions."""
    rest = address.partition("://")[2] or address
    host = re.match(r"\[[^]]*\]|[^/:?#]*", rest.rpartition("@")[2])
    for each in filter(None, (address, address.partition("#")[0], host and host[0].strip("[]"))):
        error = re.sub(rf"(?<!\w){re.escape(each)}(?!\w)", "…", error, flags=re.IGNORECASE)
    return _ADDRESS.sub("…", error)


def command(desired: str, stage: int, power: str, agent: bool) -> str | None:
    """Return the next command for a machine: 'on', 'off', 'soft' (shut down), 'cycle', or None if
    nothing is left to do.

    desired  the action: 'on', 'off', 'soft' or 'cycle'
    stage    commands that the machine has accepted without carrying them out
    power    'on', 'off' or 'unknown'
    agent    the trampoline's agent runs on it, and has been told to power down
    """
    if desired in ("off", "soft"):
        asks = ASK_AGENT if agent else ASK_SYSTEM if desired == "soft" else 0
        return None if power == "off" else "soft" if stage < asks else "off"
    # a cycle that was accepted is not repeated
    if power == "on" and (desired == "on" or stage > 0):
        return None
    if desired == "cycle" and power != "off":
        return "cycle"
    return "on" if stage < ASK_ON else "cycle"


def retry_after(attempts: int, elapsed: float) -> float | None:
    """Return the seconds to wait after the failed attempt number `attempts`, `elapsed` seconds
    after the action was ordered; None: give up."""
    pause = _pause(attempts)
    return pause if elapsed + pause <= BUDGET else None


def retry_silent(attempts: int, elapsed: float) -> float:
    """Return the seconds to wait, as `retry_after`, for an action that is never given up: the BMC
    does not answer at all."""
    return _pause(attempts) if elapsed <= BUDGET else SILENT_PAUSE


def _pause(attempts: int) -> float:
    pause: float = FIRST_PAUSE * 2 ** min(attempts - 1, 10)
    return min(pause, LONGEST_PAUSE)
