"""Check of BMCs and outlets. Each is asked once whether its machine is on, with the account that
the server would use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from twisted.internet.defer import TimeoutError

from cod.choices import CANNOT_ORDER_BOOT, CANNOT_TELL, PowerDriverKind
from cod.doctor.asking import PATIENCE, answers
from cod.doctor.finding import BAD, GOOD, PASSWORD, UNSEEN, WARNING, Context, Finding
from cod.doctor.rows import rows
from cod.model import Node, PowerRule, Site
from cod.power.accounts import NoPassword, sign_in
from cod.power.driver import PowerError, Target
from cod.power.loading import drivers
from cod.quantity import first_few
from cod.store.nodes import nodes

FEW = 5  # names in a sentence
MOST = 64  # machines that are asked, spread over the drivers and accounts


def findings(context: Context) -> Iterator[Finding]:
    """Yield a finding for each machine whose BMC fails, and one for each driver. A wrong password
    counts as a failed sign-in at the BMC."""
    site = context.site
    if not site.power:
        yield Finding(
            BAD,
            "the site file has no [[power]] rule: COD cannot switch machines, and a node that is"
            " released is quarantined unless somebody reboots it by hand",
            "add a [[power]] rule; docs/power has the drivers",
        )
    known = rows(context.settings, nodes.every)
    if site.power and (driverless := driverless_names(known or [])):
        yield Finding(
            BAD,
            f"{listed(driverless)}: no power driver, so that COD cannot switch"
            f" {'it' if len(driverless) == 1 else 'them'}: when released, a node is quarantined"
            " unless somebody reboots it by hand",
            "`cod node set NAME --power-driver DRIVER --power-address ADDRESS`; [[power]] rules"
            " count for new machines",
        )
    if known is None and site.power:
        yield Finding(UNSEEN, "the database does not tell which machines there are")
    if known is None:
        return
    yield from _boots_unordered(known)
    # without machines, the rules that name one machine can be tried
    asked = _some(known) if known else _named_by(site.power)
    for rule in site.power:
        if rule.driver == "wol":
            yield Finding(
                GOOD, f"rule {rule.match}: Wake-on-LAN cannot be asked, and cannot switch off"
            )
        elif not known and rule.driver != "none" and "{" in rule.address:
            yield Finding(
                UNSEEN,
                f"rule {rule.match} ({rule.driver}): no machine is known yet",
                "run `cod doctor` again when the first machine has reported",
            )
    if asked:
        yield from _judged(asked, _statuses(asked, site), len(known))


class Switched(NamedTuple):
    """A machine whose power driver is asked for its state."""

    name: str
    driver: str
    address: str
    account: str | None
    firmware: str | None = None


def _some(known: Sequence[Node]) -> list[Switched]:
    """Return machines, at most `MOST`, spread evenly over drivers and accounts."""
    seen: Counter[tuple[str, str | None]] = Counter()
    turns: list[tuple[int, Switched]] = []
    for node in known:
        driver, address, account = node.power_driver, node.power_address, node.power_account
        if driver and address and driver not in CANNOT_TELL:
            machine = Switched(node.name, driver, address, account, node.firmware)
            turns.append((seen[driver, account], machine))
            seen[driver, account] += 1
    return [machine for _, machine in sorted(turns, key=lambda each: each[0])[:MOST]]


def _named_by(rules: Sequence[PowerRule]) -> list[Switched]:
    return [
        Switched(f"rule {rule.match}", rule.driver, rule.address, rule.account)
        for rule in rules
        if rule.driver not in CANNOT_TELL and rule.address and "{" not in rule.address
    ]


def _boots_unordered(known: list[Node]) -> Iterator[Finding]:
    """Yield a warning about UEFI machines whose power driver cannot order a network boot, because
    their systems can change the boot order."""
    names = sorted(
        node.name
        for node in known
        if node.firmware == "uefi"
        and node.power_driver in CANNOT_ORDER_BOOT
        and node.state != "retired"
    )
    if names:
        yield Finding(
            WARNING,
            f"{listed(names)}: UEFI, and no BMC that orders a network boot: a system that puts"
            " itself first in the boot order does not give the machine back",
            "use images that leave the boot order alone (docs/install), or a BMC's driver"
            " (docs/power)",
        )


def driverless_names(known: Sequence[Node]) -> list[str]:
    """Return the names of the nodes without a power driver."""
    gone = ("expected", "new", "retired")
    return [
        node.name
        for node in known
        if node.power_driver in (None, "", "none") and node.state not in gone
    ]


def listed(names: Sequence[str]) -> str:
    """Return the first names, and the number of others."""
    return first_few(names, FEW)


def _statuses(asked: list[Switched], site: Site) -> list[str | Exception]:
    """Ask all of them; return the power of each machine, or the error in its place."""
    known = cache(drivers)

    async def ask(one: Switched, reactor: Any) -> str:
        target = Target(one.address, sign_in(site, one.account), one.firmware)
        return await known(reactor)[one.driver].status(target)

    return answers([partial(ask, machine) for machine in asked])


def _judged(
    asked: list[Switched], answers: list[str | Exception], in_all: int
) -> Iterator[Finding]:
    good: Counter[str] = Counter()
    for one, answer in zip(asked, answers, strict=True):
        if isinstance(answer, str):
            good[one.driver] += 1
            continue
        why, remedy = f"{type(answer).__name__}: {answer}", PowerDriverKind(one.driver).can.remedy
        if isinstance(answer, TimeoutError):
            why = f"no answer within {PATIENCE:.0f} s"
        elif isinstance(answer, PowerError):
            why = answer.sentence
            if answer.lasting:
                remedy = "correct [[account]] or [[power]] of the site file, or `cod node set`"
        if isinstance(answer, NoPassword):
            remedy = PASSWORD
        yield Finding(BAD, f"{one.name}: {one.driver} at {one.address}: {why}", remedy)
    for driver, count in good.items():
        rest = f"; {in_all} machines are known" if in_all > len(asked) else ""
        yield Finding(GOOD, f"{driver}: {count} answered{rest}")
