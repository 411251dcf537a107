"""Check of switches. Each is asked once for a description of itself, with the account that the
server would use."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from twisted.internet.defer import TimeoutError

from cod.choices import SwitchDriverKind
from cod.doctor.asking import PATIENCE, answers
from cod.doctor.finding import BAD, GOOD, PASSWORD, Context, Finding
from cod.model import Site, Switch
from cod.power.accounts import NoPassword, sign_in
from cod.power.driver import PowerError
from cod.switches.driver import SwitchError, SwitchTarget
from cod.switches.loading import drivers


def findings(context: Context) -> Iterator[Finding]:
    known = cache(drivers)

    async def ask(site: Site, switch: Switch, reactor: Any) -> str:
        session = await known(reactor)[switch.driver].open(
            SwitchTarget(switch, sign_in(site, switch.account))
        )
        await session.close()
        return session.about

    switches = context.site.switches
    for switch, answer in zip(
        switches, answers([partial(ask, context.site, each) for each in switches]), strict=True
    ):
        where = f"{switch.name}: {switch.driver} at {switch.address}"
        if isinstance(answer, str):
            yield Finding(GOOD, f"{where}: {answer or 'answered'}")
        else:
            why = (
                answer.sentence
                if isinstance(answer, SwitchError | PowerError)
                else (
                    f"no answer within {PATIENCE:.0f} s"
                    if isinstance(answer, TimeoutError)
                    else f"{type(answer).__name__}: {answer}"
                )
            )
            lasting = isinstance(answer, SwitchError | PowerError) and answer.lasting
            yield Finding(
                BAD,
                f"{where}: {why}",
                PASSWORD
                if isinstance(answer, NoPassword)
                else (
                    "correct [[account]] or [[switch]] of the site file"
                    if lasting
                    else SwitchDriverKind(switch.driver).remedy
                ),
            )
