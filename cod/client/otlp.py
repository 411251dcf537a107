"""Spans for collectors of traces: OTLP as JSON over HTTP. Standard library only."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit

PLACE = "/v1/traces"
TIMEOUT = 10.0  # seconds, the default of OpenTelemetry's exporters
LONGEST = 65_536  # bytes of an answer that are read
_INTERNAL, _ERROR = 1, 2  # kinds of spans, and of their ends
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # of a header (RFC 9110, 5.6.2)


class CollectorRefused(Exception):
    """The collector refuses the spans, or does not answer; the sentence says why."""


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """A named span of time in a trace.

    trace     id of 16 bytes; `id`, `parent`: of 8; b'': the span has no parent
    since     seconds since the epoch; `until`, too
    trouble   why it failed; '': it did not
    """

    trace: bytes
    id: bytes
    parent: bytes
    name: str
    since: float
    until: float
    about: Mapping[str, str | int | float | None] = field(default_factory=dict)
    trouble: str = ""


def document(resources: Iterable[tuple[Mapping[str, str], Iterable[TraceSpan]]]) -> dict[str, Any]:
    """Return spans, with the attributes of each of the `resources`, in the form of OTLP's JSON."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(about)},
                "scopeSpans": [{"scope": {"name": "cod"}, "spans": [_span(one) for one in spans]}],
            }
            for about, spans in resources
        ]
    }


def send(url: str, spans: Mapping[str, Any], headers: str = "") -> None:
    """Send a document to the collector at `url`, which need not end with `PLACE`. Raises
    `CollectorRefused` and `ValueError`.

    headers  NAME=VALUE,NAME=VALUE with values encoded as in URLs, as in OTEL_EXPORTER_OTLP_HEADERS
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"{url!r} should begin with http:// or https://")
    place = _place(url)
    asked = urllib.request.Request(place, json.dumps(spans).encode(), _headers(headers))
    try:
        with urllib.request.build_opener(_NoRedirects).open(asked, timeout=TIMEOUT) as answer:
            reply = _object(answer.read(LONGEST))
    except HTTPError as error:
        reply = _object(error.read(LONGEST))
        raise CollectorRefused(
            f"{place} answers {error.code}: {reply.get('message', error.reason)}"
        ) from None
    except (OSError, HTTPException) as error:
        raise CollectorRefused(
            f"{place} does not answer: {getattr(error, 'reason', error)}"
        ) from None
    partly = reply.get("partialSuccess")
    if isinstance(partly, dict) and partly.get("rejectedSpans") not in (None, 0, "0"):
        about = partly.get("errorMessage", "it does not say why")
        raise CollectorRefused(f"{place} refuses {partly['rejectedSpans']} spans: {about}")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirection, because the request would be repeated without its body."""

    def redirect_request(self, *_: Any) -> None:
        """Return None: no request is made."""
        return


def _place(url: str) -> str:
    """Return the address to which spans are sent. The query of `url` stays at its end."""
    parts = urlsplit(url)
    path = parts.path if parts.path.endswith(PLACE) else parts.path.rstrip("/") + PLACE
    return parts._replace(path=path).geturl()


def _headers(text: str) -> dict[str, str]:
    """Return the headers. A `ValueError` does not contain their values, which may be secrets."""
    found = {"Content-Type": "application/json"}
    for each in filter(None, text.split(",")):
        name, equals, encoded = (part.strip() for part in each.partition("="))
        if not equals or not _NAME.fullmatch(name):
            raise ValueError("headers should be NAME=VALUE, with commas between")
        value = unquote(encoded)
        if not (value.isascii() and value.isprintable()):
            raise ValueError(f"the value of header {name} should be printable ASCII")
        found[name] = value
    return found


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _span(one: TraceSpan) -> dict[str, Any]:
    return {
        "traceId": one.trace.hex(),
        "spanId": one.id.hex(),
        "parentSpanId": one.parent.hex(),
        "name": one.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": _nanoseconds(one.since),
        "endTimeUnixNano": _nanoseconds(one.until),
        "attributes": _attributes(one.about),
        "status": {"code": _ERROR, "message": one.trouble} if one.trouble else {},
    }


def _nanoseconds(at: float) -> str:
    return str(round(at * 1e6) * 1000)  # a float has no more of today's seconds


def _attributes(about: Mapping[str, str | int | float | None]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": _value(value)}
        for key, value in about.items()
        if value is not None and value != ""
    ]


def _value(value: str | int | float) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value}
