"""Mail through the site's SMTP server: one connection for each mail, in a thread, with the standard
library's client."""

from __future__ import annotations

import smtplib
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from twisted.internet.threads import deferToThreadPool

from cod import notice_texts
from cod.flows.notices.notices import Delivery, addresses, without
from cod.model import Mail, SiteRef
from cod.net.notify.delivery_errors import DeliveryError, brief
from cod.security import secretfile
from cod.wire import mail as wire

SILENCE = 10.0  # seconds that the server may keep silent
ATTEMPT = 40.0  # seconds for the whole session
NO_SERVER = "the site has no mail server: see [smtp] in the site file"
ALL_CHOSE = "not sent: all addresses in smtp.admins are of administrators who chose otherwise"
NO_ADMINS = "nobody is named to tell: see smtp.admins in the site file"


class Mailer:
    """The sender of deliveries of the channel `email`. `reactor` limits the time of an attempt,
    `threads` is a started ThreadPool."""

    def __init__(self, reactor: Any, site: SiteRef, threads: Any) -> None:
        self._reactor, self._site, self._threads = reactor, site, threads

    async def send(self, delivery: Delivery) -> str:
        """Send the notice by mail. Return '', or a sentence about refused addresses. Raises
        `DeliveryError`."""
        site = self._site.current
        mail = site.mail
        listed = addresses(delivery.send.target) or mail.admins
        to = without(listed, delivery.left_out)
        if not mail.host or not listed:
            raise DeliveryError(NO_ADMINS if mail.host else NO_SERVER, lasting=True)
        if not to:
            return ALL_CHOSE
        notice, portal = delivery.notice, site.signin.url
        remedy = ""
        if notice.link:
            where = portal + notice.link if portal else f"in the portal, at {notice.link}"
            remedy = f"{notice_texts.remedy(notice.kind, 'More')}: {where}"
        text = wire.message(site.name, site.domain, notice, delivery.whom, mail.sender, to, remedy)
        session = SmtpSession(mail, site.notices.ca_file)
        limit = self._reactor.callLater(ATTEMPT, session.break_off)
        try:
            return str(
                await deferToThreadPool(self._reactor, self._threads, session.send, to, text)
            )
        finally:
            if limit.active():
                limit.cancel()


class SmtpSession:
    """A session with the mail server. Its methods block."""

    line: smtplib.SMTP | None = None

    def __init__(self, mail: Mail, ca_file: str | None) -> None:
        self._mail, self._ca_file = mail, ca_file
        self.late = False

    def send(self, to: Sequence[str], text: bytes) -> str:
        """Send `text` to all addresses `to`; return a text about the refused ones, '' if there are
        none. Raises `DeliveryError`."""
        try:
            line = self._connected()
            try:
                return _some(line.sendmail(self._mail.sender, list(to), text))
            finally:
                # the mail is sent already, whatever QUIT's reply is
                with suppress(OSError, ValueError):
                    line.quit()
                line.close()
        except smtplib.SMTPRecipientsRefused as error:
            raise DeliveryError(
                _some(error.recipients),
                lasting=all(_final(code) for code, _ in error.recipients.values()),
            ) from None
        except smtplib.SMTPDataError as error:
            raise DeliveryError(
                f"the mail server refused the mail: {_smtp_reply(error)}",
                lasting=_final(error.smtp_code),
            ) from None
        except smtplib.SMTPResponseException as error:
            # greeting, sign-in, sender: no other mail would fare better
            raise DeliveryError(
                f"the mail server refused: {_smtp_reply(error)}", dead=True
            ) from None
        except (OSError, ValueError, secretfile.Unreadable) as error:
            # SMTPException and SSLError are OSErrors
            what = f"no end within {ATTEMPT:.0f} s" if self.late else brief(error)
            raise DeliveryError(f"the mail server cannot be used: {what}", dead=True) from None

    def _connected(self) -> smtplib.SMTP:
        """Return a connection to the mail server, secured and signed in. Raises smtplib's
        errors."""
        mail, name = self._mail, socket.gethostname()
        line: smtplib.SMTP
        if mail.tls == "tls":
            line = _Tls(self, mail.host, mail.at, name, timeout=SILENCE, context=self._trust())
        else:
            line = _Plain(self, mail.host, mail.at, name, timeout=SILENCE)
        try:
            if mail.tls == "starttls":
                line.starttls(context=self._trust())
            if mail.user:
                line.login(mail.user, _plain(secretfile.first_line(mail.password_file or "")))
        except BaseException:
            line.close()
            raise
        return line

    def _trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._ca_file)

    def break_off(self) -> None:
        """Cut the session, from another thread, because it takes too long."""
        self.late = True
        if self.line is not None and self.line.sock is not None:
            with suppress(OSError):
                self.line.sock.shutdown(socket.SHUT_RDWR)


class _Known:
    """A connection that registers itself with its session before it connects, so that the session
    can cut it."""

    def __init__(self, session: SmtpSession, *args: Any, **rest: Any) -> None:
        self._session = session
        session.line = self  # type: ignore[assignment]
        super().__init__(*args, **rest)

    def _get_socket(self, *args: Any) -> Any:
        """Return the connection's socket. Raises OSError if the session was cut meanwhile."""
        made: Any = super()._get_socket(*args)  # type: ignore[misc]
        # set before `late` is read: `break_off`, in another thread, sets `late` and then reads this
        setattr(self, "sock", made)  # noqa: B010 - smtplib's own, whose type is none of ours
        if self._session.late:
            made.close()
            raise OSError("broken off")
        return made


class _Plain(_Known, smtplib.SMTP):
    """A connection to a mail server that begins without TLS."""


class _Tls(_Known, smtplib.SMTP_SSL):
    """A connection to a mail server that uses TLS from the first byte."""


def _plain(password: str) -> str:
    """Return the password. Raises ValueError if it is not ASCII: smtplib cannot send it, and its
    own error would show the first such character."""
    if not password.isascii():
        raise ValueError(
            "the password in smtp.password_file has characters other than ASCII, which cannot be"
            " sent"
        )
    return password


def _final(code: int) -> bool:
    """Return whether a repetition is useless, by the reply's code (RFC 5321, 4.2.1)."""
    return 500 <= code <= 599


def _smtp_reply(error: smtplib.SMTPResponseException) -> str:
    return f"{error.smtp_code} {brief(error.smtp_error)}"


def _some(refused: dict[str, tuple[int, bytes]]) -> str:
    parts = [f"{to} was refused: {code} {brief(reply)}" for to, (code, reply) in refused.items()]
    return "; ".join(parts)
