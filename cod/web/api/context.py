"""The objects with which requests on one listening port of the web server are answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, DeferredSemaphore

from cod.model import DatabaseHost, SettingRules
from cod.security.signer import VcmAuthority
from cod.tokenbucket import Buckets
from cod.web.api.events import Hub
from cod.web.api.simulator import Simulator
from cod.web.http.port import WebPort
from cod.web.http.uploads.intake import Intake
from cod.web.signin.service import SignIn


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(WebPort):
    """The server's parts, settings and secrets, as requests on one port see them.

    images        the folder that images are served from
    intake        takes uploads
    upload_limit  the largest upload, in bytes
    wake          carries out the effects of a flow
    metrics       returns the text of `/metrics`
    webhook_key   the secret that webhooks' keys are derived from
    authority     the site's certificate authority for VCMs
    consoles      the folder that consoles are kept in, or None
    settings      the site file and its changes
    database      returns what the database's hosts said when they were asked last
    fingerprint   returns the SHA-256 of the web server's certificate, hex; '' if there is none
    costly        the buckets of people's costly requests; changes: of their changes
    turn          a lock: costly requests are prepared one at a time
    """

    images: Path
    intake: Intake
    upload_limit: int
    wake: Callable[[Any], object]
    metrics: Callable[[], Deferred[bytes]]
    webhook_key: bytes
    authority: VcmAuthority | None
    consoles: Path | None
    settings: SettingRules | None
    database: Callable[[], tuple[DatabaseHost, ...]]
    fingerprint: Callable[[], str]
    signin: SignIn
    hub: Hub
    simulator: Simulator
    costly: Buckets = field(default_factory=Buckets)
    changes: Buckets = field(default_factory=Buckets)
    turn: DeferredSemaphore = field(default_factory=lambda: DeferredSemaphore(1))
