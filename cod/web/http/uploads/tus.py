"""Uploads over HTTP: the API's upload routes as clients of the tus protocol, and plain clients, use
them. See `wire.tus`.

The bytes of a piece are not part of the checked request. The route's flow runs, under the route's
rights, when the headers have arrived; the body goes to `web.http.uploads.intake` as it arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from cod.model import Image, Upload
from cod.web.http.errors import HttpProblem, problem_of
from cod.web.http.request import PREFIX
from cod.web.http.uploads.intake import Full, Locked
from cod.web.http.uploads.piece import TooLong, WrongChecksum
from cod.wire import tus

PATH = "/uploads"
SPOKEN = {"Tus-Resumable": tus.VERSION, "Tus-Version": tus.VERSION}
CREATION = ("upload-length", "upload-metadata")
Header = Callable[[str], str | None]
T = TypeVar("T")


def verb(method: bytes, header: Header) -> bytes:
    """Return the method that the client means: clients that cannot send PATCH name it in a header
    of a POST."""
    override = (header("x-http-method-override") or "").upper()
    return (
        override.encode()
        if method == b"POST" and override in ("PATCH", "DELETE", "HEAD")
        else method
    )


def is_here(path: str) -> bool:
    """Return whether this is a path of the upload routes (without the API's prefix)."""
    return path == PATH or path.startswith(PATH + "/")


def location(upload_id: str) -> str:
    """Return the path of an upload."""
    return f"{PREFIX}{PATH}/{upload_id}"


def options(limit: int) -> dict[str, str]:
    """Return the headers that say what this server supports."""
    return SPOKEN | {
        "Tus-Extension": tus.EXTENSIONS,
        "Tus-Max-Size": str(limit),
        "Tus-Checksum-Algorithm": ",".join(tus.ALGORITHMS),
    }


def check_version(header: Header) -> None:
    """Raise `HttpProblem` (412) for another version of the protocol. A request that names no
    version is plain HTTP, and accepted."""
    if (header("tus-resumable") or tus.VERSION) != tus.VERSION:
        raise HttpProblem(
            412, "tus_version", f"version {tus.VERSION} of the tus protocol is spoken here"
        )


def creation(header: Header) -> dict[str, Any] | None:
    """Return the body of a creation, if the request makes it by the protocol's headers; None
    without them. Raises `HttpProblem`."""
    length, metadata = (header(name) for name in CREATION)
    if length is None and metadata is None:
        return None
    if length is None:
        raise HttpProblem(
            400,
            "bad_header",
            "Upload-Length is missing: the length has to be known at the beginning",
        )
    values = _read(tus.metadata, metadata or "")
    body: dict[str, Any] = {
        key: values[key] for key in ("name", "group", "sha256") if key in values
    }
    for flag in ("plain", "raw"):
        if flag in values:
            body[flag] = values[flag].lower() not in ("0", "false", "no")
    return body | {"size": _number("Upload-Length", length)}


def check_size(size: int, limit: int, check_room: Callable[[int], None]) -> None:
    """Raise `HttpProblem` (413, 507) for a file that is too large for any sender, or for the
    disk."""
    if size > limit:
        raise HttpProblem(413, "too_large", f"an upload may have at most {limit} bytes", "size")
    try:
        check_room(size)
    except Full:
        raise HttpProblem(
            507, "no_space", f"the server's disk has no room for {size} bytes", "size"
        ) from None


def offset(header: Header) -> int:
    """Return the offset at which the client begins the piece. Raises `HttpProblem` (400)."""
    text = header("upload-offset")
    if text is None:
        raise HttpProblem(400, "bad_header", "Upload-Offset is missing")
    return _number("Upload-Offset", text)


def checksum(header: Header) -> tuple[str, bytes] | None:
    """Return (algorithm, digest) of the header Upload-Checksum; None without that header. Raises
    `HttpProblem` (400)."""
    text = header("upload-checksum")
    return None if text is None else _read(tus.checksum, text)


def check_offset(upload: Upload, given: int, length: int | None) -> None:
    """Raise `HttpProblem` unless a piece of `length` bytes (None: unknown) at `given` continues the
    upload and fits into it."""
    if given != upload.offset:
        raise HttpProblem(
            409,
            "offset",
            f"this server has {upload.offset} bytes of the upload: go on from there, not from "
            f"{given}",
        )
    if length is not None and given + length > upload.size:
        raise too_long(upload)


def too_long(upload: Upload) -> HttpProblem:
    """Return the problem of a piece that goes beyond the upload's declared size."""
    return HttpProblem(
        413, "too_large", f"the upload was to have {upload.size} bytes, and this piece goes beyond"
    )


def upload_headers(upload: Upload, image: Image | None = None) -> dict[str, str]:
    """Return the headers of an answer about an upload. If the upload has become an image, they are
    about `image`."""
    headers = {"Upload-Offset": str(upload.offset), "Upload-Length": str(upload.size)}
    if image is None:
        return headers | {
            "Upload-Expires": tus.expires(upload.expires_at),
            "Upload-Metadata": _metadata(upload),
        }
    return headers | {"Repr-Digest": tus.encode_digest(image.sha256)}


def wrong(error: Exception, upload: Upload | None = None) -> HttpProblem:
    """Return the problem document that the client is sent for an exception about a piece."""
    if isinstance(error, Locked):
        return HttpProblem(
            423, "locked", "somebody else is sending this upload; try again in some seconds"
        )
    if isinstance(error, WrongChecksum):
        return HttpProblem(
            tus.MISMATCH, "checksum", "the piece is not what its checksum says; send it again"
        )
    if isinstance(error, TooLong) and upload is not None:
        return too_long(upload)
    if isinstance(error, OSError):
        return HttpProblem(507, "no_space", f"the upload cannot be kept: {error.strerror or error}")
    return problem_of(error)


def _metadata(upload: Upload) -> str:
    values = {"name": upload.name, "group": upload.group}
    values |= {"sha256": upload.sha256} if upload.sha256 else {}
    flags = {"plain": upload.plain, "raw": upload.raw}
    return tus.encode_metadata(values | {name: "true" for name, value in flags.items() if value})


def _number(name: str, text: str) -> int:
    return _read(lambda value: tus.number(name, value), text)


def _read(reader: Callable[[str], T], text: str) -> T:
    try:
        return reader(text)
    except tus.BadHeader as error:
        raise HttpProblem(400, "bad_header", str(error), error.name) from None
