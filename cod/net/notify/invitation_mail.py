"""Links sent by mail: to one address, at once, by the site's mail server. They are not sent as
notices, because notices are stored and links must not be."""

from __future__ import annotations

import threading

from cod.model import Site
from cod.net.notify.delivery_errors import DeliveryError
from cod.net.notify.mailer import ATTEMPT, SmtpSession
from cod.wire import mail


def send_link(site: Site, to: str, subject: str, about: str, now: float) -> str:
    """Send a link by mail. Return '', or a sentence that says why the mail was not sent. Blocks for
    at most `ATTEMPT` seconds."""
    if not to:
        return "there is no address to send it to"
    if not site.mail.host:
        return "the site has no mail server: see [smtp] in the site file"
    session = SmtpSession(site.mail, site.notices.ca_file)
    limit = threading.Timer(ATTEMPT, session.break_off)
    limit.start()
    try:
        return session.send([to], mail.letter(site.name, subject, about, site.mail.sender, to, now))
    except DeliveryError as unsent:
        return str(unsent)
    finally:
        limit.cancel()
