"""Enrolment of a VCM that runs on a node of its vcluster: the VCM makes a key and exchanges its
invitation for a certificate.

The VCM may be killed at any point. The key is on disk before it is shown to anybody. If COD's
answer is lost, COD issues another certificate to the same key for the same invitation. The
invitation's file is deleted last.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from twisted.internet.defer import Deferred

from cod.vcm import credentials
from cod.vcm.files import put
from cod.vcm.link import Link
from cod.vcm.settings import Settings
from cod.wire.nmp.bodies import Enroll, Enrolled

log = logging.getLogger("cod.vcm")


class EnrollmentFailed(Exception):
    """The connection ended without a certificate; the text is COD's reason, if it gave one."""


def is_invited(settings: Settings, folder: Path) -> bool:
    """Return whether there is an invitation that was not exchanged yet."""
    return bool(settings.invitation) and (folder / settings.invitation).exists()


async def trade(
    reactor: Any, settings: Settings, folder: Path, connect: Callable[[Link], Deferred[Any]]
) -> None:
    """Exchange the invitation in `folder` for a certificate. `connect` connects without a
    certificate. Raises `EnrollmentFailed`, or the failure of `connect`; a retry is allowed."""
    invitation = folder / settings.invitation
    key = _key(folder / settings.key)
    asked = Enroll(
        settings.vcluster,
        invitation.read_text().strip(),
        b64encode(credentials.request(key)).decode(),
    )
    answer = await _ask(reactor, asked, connect)
    certificate = x509.load_der_x509_certificate(b64decode(answer.certificate))
    put(folder / settings.certificate, credentials.pem(certificate))
    invitation.unlink()
    log.info(
        "traded the invitation for a certificate, until %s",
        f"{certificate.not_valid_after_utc:%Y-%m-%d}",
    )


async def _ask(reactor: Any, asked: Enroll, connect: Callable[[Link], Deferred[Any]]) -> Enrolled:
    answered: Deferred[Enrolled] = Deferred()
    link = Link(
        reactor,
        asked,
        welcomed=answered.callback,
        received=lambda sequence, body: None,
        lost=lambda why: None if answered.called else answered.errback(EnrollmentFailed(why)),
    )
    await connect(link)
    try:
        return await answered
    finally:
        link.leave("")


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key in the file; make it if the file is missing."""
    if not path.exists():
        put(path, credentials.key_pem(credentials.new_key()))
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} is no key of an elliptic curve: remove it, and one is made")
    return key
