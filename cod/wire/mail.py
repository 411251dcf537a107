"""A notice as an e-mail (RFC 5322), in plain text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, make_msgid

from cod.model import Notice
from cod.wire.webhook import unique

WRITTEN = SMTP.clone(max_line_length=78)


def message(
    site: str,
    domain: str,
    notice: Notice,
    whom: str,
    sender: str,
    to: Sequence[str],
    remedy: str = "",
) -> bytes:
    """Return the mail, with CR LF. Each attempt gives the same mail, with the same Message-ID,
    because mail systems drop repetitions.

    remedy        a line that says what to do and where; '' for none
    whom          the recipients of the notice, as its last line names them
    site, domain  the site's name and DNS suffix
    sender, to    plain addresses, already checked (`policy.notice_delivery.addresses`)
    """
    mail = EmailMessage(policy=WRITTEN)
    mail["From"] = Address(f"COD {_one_line(site)}", addr_spec=sender)
    mail["To"] = tuple(Address(addr_spec=each) for each in to)
    mail["Subject"] = _one_line(f"[{site}] {notice.subject}")
    mail["Date"] = format_datetime(datetime.fromtimestamp(int(notice.at), UTC))
    mail["Message-ID"] = f"<{unique(site, notice)}@{domain}>"
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no vacation notices in return
    mail["X-COD-Notice"] = str(notice.id)
    mail["X-COD-Kind"] = _one_line(notice.kind)
    link = f"\n{remedy}\n" if remedy else ""
    signature = f"-- \nNotice {notice.id} of Cluster-on-Demand at {site}, for {whom}.\n"
    mail.set_content(f"{notice.about}\n{link}\n{signature}", cte="quoted-printable")
    return mail.as_bytes()


def _one_line(text: str) -> str:
    """Return the text without control characters: a header is one line."""
    return "".join(c if c.isprintable() else " " for c in text)


def letter(site: str, subject: str, about: str, sender: str, to: str, at: float) -> bytes:
    """Return a mail to one address that is not a notice, with CR LF."""
    mail = EmailMessage(policy=WRITTEN)
    mail["From"] = Address(f"COD {_one_line(site)}", addr_spec=sender)
    mail["To"] = Address(addr_spec=to)
    mail["Subject"] = _one_line(f"[{site}] {subject}")
    mail["Date"] = format_datetime(datetime.fromtimestamp(int(at), UTC))
    mail["Message-ID"] = make_msgid(domain=sender.rpartition("@")[2])
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(about, cte="quoted-printable")
    return mail.as_bytes()
