"""Checks of the portal's certificate and that of the authority for VCMs: whether key and
certificate belong together, and when they expire."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from cod.doctor.finding import BAD, GOOD, UNSEEN, WARNING, Context, Finding
from cod.security import webcert
from cod.security.webcert import WebCertificate

NEAR = 30 * 86400.0  # seconds before the end that are a warning


def findings(context: Context) -> Iterator[Finding]:
    settings = context.settings
    own = settings.certificate
    if not settings.api.plain and settings.listen:
        files = own or WebCertificate(settings.web / "web.crt", settings.web / "web.key")
        remedy = (
            "put the renewed certificate and its key there, then `systemctl reload cod`"
            if own
            else "remove both files and restart the server: COD makes new ones"
        )
        yield _judged("portal", files, remedy, context.now, made=own is None)
    files = WebCertificate(settings.authority / "ca.crt", settings.authority / "ca.key")
    yield _judged(
        "authority for VCMs",
        files,
        "bring both files back from a backup, or remove them, restart the "
        "server and enrol every VCM again",
        context.now,
        made=True,
    )


def _judged(what: str, files: WebCertificate, remedy: str, now: float, made: bool) -> Finding:
    """Return the finding about one certificate. `made`: COD makes both files if they are
    missing."""
    if made and not _exists(files.certificate) and not _exists(files.key):
        return Finding(GOOD, f"{what}: COD makes it when the server starts")
    try:
        (first, *_), _key = webcert.loaded(files)
    except webcert.BadWebCertificate as error:
        state = UNSEEN if "Permission denied" in str(error) else BAD
        return Finding(
            state, f"{what}: {error}", "run `cod doctor` as root" if state == UNSEEN else remedy
        )
    begin, end = first.not_valid_before_utc.timestamp(), first.not_valid_after_utc.timestamp()
    if end <= now:
        return Finding(BAD, f"{what}: it ended on {_day(end)}", remedy)
    if begin > now:
        return Finding(
            BAD,
            f"{what}: it begins on {_day(begin)} only",
            f"is the host's clock right? If so, it was ahead before: {remedy}",
        )
    if end - now < NEAR:
        return Finding(WARNING, f"{what}: it ends on {_day(end)}", remedy)
    return Finding(GOOD, f"{what}: good until {_day(end)}, for {_names(first)}")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # its folder is somebody else's
        return True


def _names(certificate: x509.Certificate) -> str:
    """Return the first names and addresses that the certificate is for, or its subject if it has
    none."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return certificate.subject.rfc4514_string()
    names = [str(each.value) for each in found]
    return ", ".join(names[:4]) + (" …" if len(names) > 4 else "")


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")
