"""Check of BMCs and outlets. Each is asked once whether its machine is on, with the account that
the server would use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

from twisted.internet.defer import TimeoutError

from cod.choices import CANNOT_ORDER_BOOT, CANNOT_TELL, PowerDriverKind
from cod.doctor.asking import PATIENCE, answers
from cod.doctor.finding import BAD, GOOD, PASSWORD, UNSEEN, WARNING, Context, Finding
from cod.doctor.rows import rows
from cod.model import Node, Site
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
    machines = [
        (node.name, node.power_driver, node.power_address, node.power_account, node.firmware)
        for node in known
        if node.power_driver not in CANNOT_TELL and node.power_address
    ]
    seen: Counter[Any] = Counter()
    ranked: list[tuple[int, int, Any]] = []
    for machine in machines:
        ranked.append((seen[machine[1], machine[3]], len(ranked), machine))
        seen[machine[1], machine[3]] += 1
    # The machines are spread evenly over drivers and accounts.
    asked = [machine for *_, machine in sorted(ranked, key=lambda each: each[:2])[:MOST]]
    if not known:  # a site without machines: rules that name one machine can be tried
        asked = [
            (f"rule {rule.match}", rule.driver, rule.address, rule.account, None)
            for rule in site.power
            if rule.driver not in CANNOT_TELL and rule.address and "{" not in rule.address
        ]
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


def _statuses(asked: list[Any], site: Site) -> list[str | Exception]:
    """Ask all of them; return the power of each machine, or the error in its place."""
    known = cache(drivers)

    async def ask(
        driver: str, address: str, account: str | None, firmware: str | None, reactor: Any
    ) -> str:
        return await known(reactor)[driver].status(
            Target(address, sign_in(site, account), firmware)
        )

    return answers([partial(ask, *machine[1:]) for machine in asked])


def _judged(asked: list[Any], answers: list[str | Exception], in_all: int) -> Iterator[Finding]:
    good: Counter[str] = Counter()
    for (name, driver, address, *_), answer in zip(asked, answers, strict=True):
        if isinstance(answer, str):
            good[driver] += 1
        else:
            why, remedy = f"{type(answer).__name__}: {answer}", PowerDriverKind(driver).can.remedy
            if isinstance(answer, TimeoutError):
                why = f"no answer within {PATIENCE:.0f} s"
            elif isinstance(answer, PowerError):
                why = answer.sentence
                if answer.lasting:
                    remedy = "correct [[account]] or [[power]] of the site file, or `cod node set`"
            if isinstance(answer, NoPassword):
                remedy = PASSWORD
            yield Finding(BAD, f"{name}: {driver} at {address}: {why}", remedy)
    for driver, count in good.items():
        rest = f"; {in_all} machines are known" if in_all > len(asked) else ""
        yield Finding(GOOD, f"{driver}: {count} answered{rest}")
