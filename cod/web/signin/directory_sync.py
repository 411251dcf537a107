"""Asks the LDAP directory from time to time about the users of the site. A user who was removed or
locked there must not stay signed in until a session or token expires; and the directory's groups
give roles.

While the directory does not answer, all users stay as they are. Each server with a manager part
asks the directory, which does no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.threads import deferToThreadPool

from cod.flows.people import directory_sync
from cod.model import DirectorySyncResult, Refused, Site, SiteRef
from cod.periodic import Periodic
from cod.pool import Pool
from cod.web.signin import directory

PERIOD = 60.0  # seconds between looks at the clock
AGAIN = 300.0  # seconds after which a directory that was away is asked again
AT_ONCE = 100  # users in one transaction
MOST_NEW = 2000  # users that one comparison makes

log = logging.getLogger("cod.ldap")


class DirectorySync(Periodic):
    """The comparison of one server's users with the directory, every `site.signin.ldap.check`
    seconds, which SIGHUP may change."""

    def __init__(self, reactor: Any, pool: Pool, site: SiteRef, clock: Callable[[], float]) -> None:
        super().__init__(reactor, pool, log, "who has left the directory is not known", PERIOD)
        self._reactor, self._site, self._clock = reactor, site, clock
        self._last = float("-inf")  # when the directory was asked
        self._pause = 0.0
        self._ended = False  # the site has no directory, and the notice about it has ended

    async def look(self) -> None:
        """Ask the directory, if it is time."""
        rules, now = self._site.current.signin.ldap, self._clock()
        if not rules.url and not self._ended:
            await self._pool.run(directory_sync.too_many, losers=(), asked=(), now=now)
        self._ended = not rules.url
        pause = self._pause or rules.check
        # the clock may have been set back
        if not rules.url or not rules.check or 0 <= now - self._last < pause:
            return
        self._last, self._pause = now, 0.0
        try:
            await follow(self._reactor, self._pool, self._site.current, self._clock)
        except Refused as error:
            self._last, self._pause = self._clock(), AGAIN
            if error.code != "busy":  # `directory` has logged the reason of that
                log.error("%s: %s", self._trouble, error.sentence)


async def follow(
    reactor: Any,
    pool: Pool,
    site: Site,
    clock: Callable[[], float],
    *,
    names: Sequence[str] = (),
    actor: str = directory_sync.DIRECTORY,
    trust: bool = False,
) -> DirectorySyncResult:
    """Apply what the directory knows about the site's users, and about people who have not signed
    in yet: members of the groups that give roles, and those called `names`. Return what was
    changed. Raises `Refused` if the directory cannot be asked.

    trust  apply the directory's answer even if many people lose rights at once
    """
    rules, since = site.signin.ldap, clock()
    asked = await pool.read(directory_sync.asked, now=since)
    if not asked and not names and not rules.groups:
        await pool.run(directory_sync.too_many, losers=(), asked=(), now=since)
        return DirectorySyncResult()
    answer = await deferToThreadPool(
        reactor,
        reactor.getThreadPool(),
        directory.read,
        rules,
        [user.subject for user in asked if user.subject],
        names,
        members=rules.create,
    )
    losers = (
        [] if trust else await pool.read(directory_sync.losers, asked=asked, known=answer.known)
    )
    is_held = await pool.run(directory_sync.too_many, losers=losers, asked=asked, now=clock())
    held = losers if is_held else []
    gone, back, changed = list[str](), list[str](), list[str]()
    for start in range(0, len(asked), AT_ONCE):
        done = await pool.run(
            directory_sync.record,
            asked=asked[start : start + AT_ONCE],
            known=answer.known,
            held=frozenset(held),
            since=since,
            now=clock(),
        )
        for found, more in zip((gone, back, changed), done, strict=True):
            found += more
    added = list[str]()
    for start in range(0, min(len(answer.others), MOST_NEW), AT_ONCE):
        added += await pool.run(
            directory_sync.admit,
            identities=answer.others[start : start + AT_ONCE],
            actor=actor,
            posix=site.posix,
            now=clock(),
        )
    result = DirectorySyncResult(
        tuple(added), tuple(gone), tuple(back), tuple(changed), tuple(held), answer.missing
    )
    _tell(result)
    return result


def _tell(result: DirectorySyncResult) -> None:
    for name in result.gone:
        log.warning(
            "%s is not in the directory any more: signed out, and let in no more until it is", name
        )
    for name in result.back:
        log.info("%s is in the directory again", name)
    if result.added:
        log.info("%d users were made from the directory", len(result.added))
    if result.held:
        log.error(
            "%d users would lose their rights at once by what the directory tells: they stay as"
            " they are until `cod user sync --trust`",
            len(result.held),
        )
