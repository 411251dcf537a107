"""Has the site's command make nodes' keytabs, and remove their principals (docs/kerberos).

    COMMAND make HOST REALM      writes the keytab on its standard output
    COMMAND remove HOST REALM    succeeds as well where there is nothing to remove

Any status but 0 is a failure; the last line on standard error is the reason. A command that takes
too long is killed with all processes that it has started: a process that hangs might otherwise make
newer keys after the node has got its keytab. One of the site's servers at a time runs commands, at
most `AT_ONCE`. A failed command is tried again without end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import TimeoutError as TookTooLong

from cod.childprocess import ChildProcess
from cod.claimkeeper import ClaimKeeper
from cod.flows.nodes import keytabs as flows
from cod.model import KerberosRules, KeytabTask, SiteRef
from cod.periodic import Claimer

POLL = 1.0  # seconds between looks
AT_ONCE = 8
ATTEMPT = 60.0  # seconds for one command
LEASE = 2 * (ATTEMPT + 15.0)  # seconds of the claim; commands begin only in its first half
SETSID = "/usr/bin/setsid"  # of util-linux, which every Debian has
OUTPUT = 64 << 10  # bytes that are kept of what a command says
ENVIRONMENT = {
    "LC_ALL": "C",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}

log = logging.getLogger("cod.keytabs")


class KeytabMaker(Claimer):
    """One server's maker of keytabs.

    check  returns the reason why an output is no keytab; '': it may be a keytab
    seal   encrypts a keytab for the order with that id
    """

    def __init__(
        self,
        reactor: Any,
        pool: Any,
        server_name: str,
        clock: Callable[[], float],
        site: SiteRef,
        check: Callable[[bytes], str],
        seal: Callable[[bytes, str], bytes],
        effects: Callable[[Any], None],
    ) -> None:
        super().__init__(reactor, pool, log, "looking for keytabs to be made", POLL)
        self._keeper = ClaimKeeper(reactor, pool, flows.CLAIM, server_name, LEASE)
        self._reactor, self._clock, self._site = reactor, clock, site
        self._check, self._seal, self._effects = check, seal, effects
        self._busy: set[str] = set()  # hosts for which a command runs

    async def look(self) -> None:
        """Begin the tasks that are due."""
        site, now = self._site.current, self._clock()
        if not (site.kerberos.realm and site.kerberos.keytab_command):
            return  # without a command, principals are not removed either
        # The claim is also kept while `AT_ONCE` commands run: two servers must not run commands for
        # the same host at once, even if only this server has lost the database.
        if await self._keeper.keep(now) is None or (room := AT_ONCE - len(self._busy)) <= 0:
            return
        # copied before the read, which may still find a task due whose command ends meanwhile
        busy = frozenset(self._busy)
        due = await self._pool.read(flows.due, site, now)
        if self._keeper.is_due():
            return
        for task in [each for each in due if each.host not in busy][:room]:
            self._busy.add(task.host)
            self.begin(self._carry_out(task, site.kerberos))

    async def _carry_out(self, task: KeytabTask, rules: KerberosRules) -> None:
        try:
            output, trouble = await self._attempt(task, rules)
            trouble = trouble or ("" if task.removal else self._check(output))
            if trouble:
                log.warning("%s: %s", task.host, trouble)
                await self._pool.run(flows.failed, task, trouble, self._clock())
            elif task.removal:
                await self._pool.run(flows.removed, task)
                log.info("%s: its principals are removed", task.host)
            else:
                sealed = self._seal(output, task.order_id)
                done = await self._pool.run(
                    flows.made, task, sealed, self._site.current, self._clock()
                )
                log.info("%s: its keytab is made", task.host)
                self._effects(done.effects)
        except Exception as error:
            log.error(
                "%s: the outcome was not written: %s",
                task.host,
                error,
                exc_info=not self._pool.is_away(error),
            )
        finally:
            self._busy.discard(task.host)

    async def _attempt(self, task: KeytabTask, rules: KerberosRules) -> tuple[bytes, str]:
        """Run the command. Return (its output, the reason of its failure or '')."""
        program = rules.keytab_command
        verb = "remove" if task.removal else "make"
        child = ChildProcess(most=OUTPUT, leads=True)
        try:
            self._reactor.spawnProcess(
                child, SETSID, ["setsid", program, verb, task.host, rules.realm], ENVIRONMENT
            )
            status, output, complaint = await child.ended.addTimeout(ATTEMPT, self._reactor)
        except TookTooLong:
            return b"", f"{program} {verb} did not end within {ATTEMPT:.0f} s"
        except OSError as error:
            return b"", f"{program} cannot be run: {error.strerror}"
        if status == 0:
            return output, ""
        lines = complaint.decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"status {status}"
        return b"", f"{program} {verb} failed: {why}"
