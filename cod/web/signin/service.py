"""Sign-in of people by passwords, links and browsers' cookies, for the portal and the API.

Passwords are verified in threads, few at once, because each takes 64 MiB. If too many people wait
for that, others are told to try again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar

from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.threads import deferToThreadPool

from cod.flows.people import directory_sync as sync_flows
from cod.flows.people import invitations, people, signin, tokens
from cod.flows.people.access import digest, has_run
from cod.flows.people.signin import Attempt
from cod.model import (
    DirectorySyncResult,
    Identity,
    Invitation,
    Refused,
    SiteRef,
    User,
    Who,
)
from cod.pool import Pool
from cod.security import password_hash
from cod.web.signin import directory, directory_sync
from cod.web.signin.oidc import Provider

P = ParamSpec("P")
T = TypeVar("T")
AT_ONCE = 2  # passwords that are verified at once
ELSEWHERE = 4  # requests to directories and providers at once
WAITING = 30  # people who may wait for either


class SignIn:
    """Sign-in of people.

    Secrets of cookies and links are 256 random bits; the database has only their digests.
    """

    def __init__(
        self, reactor: Any, pool: Pool, site: SiteRef, clock: Callable[[], float] = time.time
    ) -> None:
        self._reactor, self._pool, self._site, self._clock = reactor, pool, site, clock
        self._turns, self._away = DeferredSemaphore(AT_ONCE), DeferredSemaphore(ELSEWHERE)
        self._provider: Provider | None = None

    # ------------------------------------------------ sessions

    async def sign_in(self, name: str, password: str, *, address: str, browser: str = "") -> str:
        """Return the secret of a new session's cookie. Raises `SlowDown`; `Refused` 'unauthorised'
        or 'busy'."""
        user = await self._verified(name, password, address)
        return await self.vouched(user.id, address=address, browser=browser)

    async def token(
        self, name: str, password: str, wanted: Mapping[str, Any], *, address: str
    ) -> tuple[str, str]:
        """Return (name, secret) of a new token for a user without a browser here, by name and
        password. `wanted` has the arguments of `flows.people.tokens.make`. Raises as `sign_in`."""
        user = await self._verified(name, password, address)
        secret = f"cod_{secrets.token_urlsafe(32)}"
        return (
            await self._once(
                tokens.of_password,
                user_id=user.id,
                address=address,
                wanted={**wanted, "token": secret},
            ),
            secret,
        )

    # ------------------------------------------------ directories

    async def follow(self, who: Who, names: Sequence[str], *, trust: bool) -> DirectorySyncResult:
        """Compare the site's users with the LDAP directory for an administrator; return what was
        changed. Raises `Refused`."""
        asked = {"names": list(names), "trust": trust}
        await self._once(sync_flows.note, who=who, asked=asked)
        if not self._site.current.signin.ldap.url:
            raise Refused("not_found", "this site has no directory: set [ldap] in the site file")
        return await directory_sync.follow(
            self._reactor,
            self._pool,
            self._site.current,
            self._clock,
            names=names,
            actor=who.name,
            trust=trust,
        )

    async def oidc_begin(self, back: str) -> tuple[str, str]:
        """Return the address to send the browser to, and the value of the cookie to set. Raises
        `Refused`."""
        return await self._in_turn(self._away, self._oidc().begin, back)

    async def oidc_finish(
        self, query: Mapping[str, str], cookie: str, *, address: str, browser: str = ""
    ) -> tuple[str, str]:
        """Return the secret of a new session's cookie, and the page to go on to, for a browser that
        comes back from the provider. Raises `Refused`."""
        identity, back = await self._in_turn(self._away, self._oidc().finish, query, cookie)
        user = await self._known(identity, self._site.current.signin.oidc.create, address)
        return await self.vouched(user.id, address=address, browser=browser), back

    def _oidc(self) -> Provider:
        rules = self._site.current.signin
        if not rules.oidc.issuer or not rules.url:
            raise Refused("not_found", "this site has no sign-in by OpenID Connect")
        if self._provider is None or self._provider.rules != rules.oidc:  # SIGHUP changes them
            self._provider = Provider(rules.oidc, rules.url, self._clock)
        return self._provider

    async def _known(self, identity: Identity, create: bool, address: str) -> User:
        return await self._pool.run(
            signin.vouched,
            identity=identity,
            create=create,
            address=address,
            posix=self._site.current.posix,
            now=self._clock(),
        )

    # ------------------------------------------------ sessions

    async def vouched(self, user_id: int, *, address: str, browser: str = "") -> str:
        """Begin a session for a user whose identity is proven; return the secret of its cookie."""
        cookie = secrets.token_urlsafe(32)
        await self._once(
            signin.begin,
            user_id=user_id,
            address=address,
            browser=browser,
            cookie=digest(cookie),
            rules=self._site.current.signin,
        )
        return cookie

    async def sign_out(self, cookie: str, *, address: str) -> None:
        """End the cookie's session."""
        await self._pool.run(
            signin.sign_out, cookie=digest(cookie), address=address, now=self._clock()
        )

    # ------------------------------------------------ passwords

    async def change_password(
        self, who: Who, old: str, new: str, *, keep: int | None = None
    ) -> int:
        """Set a new password for the caller, who knows the old one. End all sessions of the user
        but `keep`; return how many."""
        try:
            user = await self._verified(who.person, old, who.address)
        except Refused as error:
            if error.code != "unauthorised":
                raise
            raise Refused(error.code, "the present password is wrong", "old") from None
        if user.id != who.user_id:
            raise signin.wrong()
        signin.check_password(new, user.name)
        new_hash = await self._slowly(password_hash.hashed, new)
        return await self._once(people.set_password, who=who, password=new_hash, but=keep)

    async def _verified(self, name: str, password: str, address: str) -> User:
        """Return the user with that name and password. Raises `Refused`."""
        now, password = self._clock(), signin.tried(password)
        tried = await self._pool.run(signin.attempt, name=name, address=address, now=now)
        try:
            user = await self._verified_by(tried, name, password, address)
        except Refused as error:
            if error.code == "busy":  # the password was not checked, so it does not count as wrong
                await self._pool.run(signin.unverified, name=name, address=address, now=now)
            raise
        if user is None:
            await self._once(signin.failed, name=name, address=address)
            raise signin.wrong()
        new_hash = (
            await self._slowly(password_hash.hashed, password)
            if tried.hash and password_hash.outdated(tried.hash)
            else None
        )
        await self._pool.run(
            signin.right, user_id=user.id, name=name, address=address, rehashed=new_hash, now=now
        )
        return user

    async def _verified_by(
        self, tried: Attempt, name: str, password: str, address: str
    ) -> User | None:
        """Return the user whose password the site, or its directory, confirms; None if it is wrong.
        Raises `Refused` 'busy' if that cannot be checked now."""
        ldap = self._site.current.signin.ldap
        if ldap.url and (tried.user is None or tried.user.directory == "ldap"):
            identity = await self._in_turn(self._away, directory.verify, ldap, name, password)
            return None if identity is None else await self._known(identity, ldap.create, address)
        right = await self._slowly(password_hash.matches, tried.hash, password)
        return tried.user if right else None

    def _once(self, flow: Callable[..., T], **asked: Any) -> Deferred[T]:
        """Run a flow that writes to the audit, once. The audit row has a random run id. If the
        answer to the commit is lost, that row shows that the flow has run."""
        run, now = secrets.token_hex(16), self._clock()
        done = partial(has_run, run=run, now=now)
        return self._pool.run_once(done, flow, **asked, now=now, run=run)

    async def _slowly(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._in_turn(self._turns, work, *args, **kwargs)

    async def _in_turn(
        self, turns: DeferredSemaphore, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if len(turns.waiting) >= WAITING:
            raise Refused("busy", "too many people are signing in at this moment; try again")
        threads = self._reactor.getThreadPool()
        return await turns.run(
            lambda: deferToThreadPool(self._reactor, threads, work, *args, **kwargs)
        )

    # ------------------------------------------------ links

    async def invitation(self, secret: str) -> Invitation:
        """Return the purpose of a link. Raises `Refused`."""
        return await self._pool.read(invitations.look, digest=digest(secret), now=self._clock())

    async def accept(self, secret: str, *, address: str, browser: str = "", **fields: str) -> str:
        """Carry out a link, as `accepted` does; return the secret of a new session's cookie. Raises
        `Refused`."""
        user = await self.accepted(secret, address=address, **fields)
        return await self.vouched(user.id, address=address, browser=browser)

    async def accepted(
        self,
        secret: str,
        *,
        password: str,
        name: str = "",
        full_name: str = "",
        email: str = "",
        address: str,
    ) -> User:
        """Carry out a link: make an account, or set a new password. Return the user. Raises
        `Refused`."""
        link = await self.invitation(secret)
        signin.check_password(password, link.user or name)
        kept = await self._slowly(password_hash.hashed, password)
        return await self._once(
            invitations.accept,
            digest=digest(secret),
            name=name,
            full_name=full_name,
            email=email,
            password=kept,
            address=address,
            posix=self._site.current.posix,
        )

    async def join(self, secret: str, who: Who) -> Invitation:
        """Add the caller to a link's group. Raises `Refused`."""
        found: Invitation = await self._once(invitations.join, digest=digest(secret), who=who)
        return found
