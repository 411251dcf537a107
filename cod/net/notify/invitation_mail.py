"""Links by mail: told to one address, at once, by the site's mail server. No notices: those are
kept, links are not."""

from __future__ import annotations

import threading

from cod.model import Site
from cod.net.notify.delivery_errors import DeliveryError
from cod.net.notify.mailer import ATTEMPT, SmtpSession
from cod.wire import mail


def send_link(site: Site, to: str, subject: str, about: str, now: float) -> str:
    """Send a link by mail. Return '' or, in a sentence, why the mail was not sent. Blocks, at most
    `ATTEMPT` seconds."""
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
