"""A small client of the REST API, over the server's UNIX socket or HTTP(S). Standard library only.

    with Client("/var/lib/cod/run/api.sock") as cod:
        for node in cod.items("/nodes", state="inactive"):
            print(node["name"])

The client repeats requests that are safe to repeat when the connection breaks or the server is
busy: reads, and creations, each of which is sent with an Idempotency-Key. To change a thing only if
nobody else has changed it since:

    group, tag = cod.seen("/groups/physics")
    cod.patch("/groups/physics", {"priority": group["priority"] + 1}, match=tag)  # or ApiError 412
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import secrets
import socket
import ssl
import time
import tomllib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

PREFIX = "/api/v1"
PAGE = 1000  # items that are asked for at a time
PAUSES = (0.2, 0.5, 1.0, 2.0)  # seconds before each repetition while the server is busy
SITE_FILE = "/etc/cod/site.toml"


class ApiError(Exception):
    """The server's refusal: `status`, stable `code`, a sentence, and the `field` at fault, if there
    is one. `remedies`: changes that would be possible, for the code 'impossible'."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        field: str | None = None,
        errors: Sequence[Mapping[str, str]] = (),
        remedies: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(f"{field}: {detail}" if field and status == 422 else detail)
        self.status, self.code, self.detail, self.field, self.errors = (
            status,
            code,
            detail,
            field,
            list(errors),
        )
        self.remedies = list(remedies)

    def sentences(self) -> list[str]:
        """Return one line for each invalid field of the request; for other errors, one line."""
        if self.status != 422 or len(self.errors) < 2:
            return [str(self)]
        return [
            f"{one['field']}: {one['detail']}" if one["field"] else one["detail"]
            for one in self.errors
        ]


class WouldChange(Exception):
    """The answer to a change under `Client.dry_run`: what would change, and whose work would
    stop."""

    def __init__(self, reply: Any) -> None:
        super().__init__("nothing was changed")
        self.reply = reply


class Unreachable(Exception):
    """No server answers. The sentence says where the client looked for it and what to do."""


def find_server(site_file: str | None = None) -> str:
    """Return the server's address: $COD_SERVER, or the UNIX socket of the site file (`site_file`,
    $COD_SITE, or the default one)."""
    if not site_file and os.environ.get("COD_SERVER"):
        return os.environ["COD_SERVER"]
    path = Path(site_file or os.environ.get("COD_SITE") or SITE_FILE)
    try:
        site = tomllib.loads(path.read_text())
        data = site.get("server", {}).get("data_dir", "/var/lib/cod")
    except (OSError, ValueError, AttributeError) as error:
        raise Unreachable(
            f"no server is named: give --server, COD_SERVER or --site ({path}: {error})"
        ) from None
    return str(Path(data) / "run" / "api.sock")


class _Unix(http.client.HTTPConnection):
    """HTTP over a UNIX socket."""

    def __init__(self, path: str, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _query(query: dict[str, Any]) -> str:
    texts = {
        key: str(value).lower() if isinstance(value, bool) else value
        for key, value in query.items()
        if value is not None
    }
    return f"?{urlencode(texts)}" if texts else ""


def path(*parts: str | int) -> str:
    """Return a path with each part quoted: path('nodes', 'n1', 'power')."""
    return "".join(f"/{quote(str(part), safe='')}" for part in parts)


def path_of(kind: str, name: str, *parts: str) -> str:
    """Return the path of an image or template, in two segments where a group owns it, because
    proxies often refuse an encoded slash: path_of('images', 'physics/debian') is
    '/images/physics/debian'."""
    return path(kind, *name.split("/"), *parts)


def full_name(name: str, group: str) -> str:
    """Return the full name of an image or template: GROUP/NAME, or NAME where `group` is '' or
    'site'. A name with a slash is full already."""
    return name if "/" in name or group in ("", "site") else f"{group}/{name}"


class _Tls(http.client.HTTPSConnection):
    """HTTP over TLS. With `pin` the server is authenticated by the SHA-256 of its certificate, and
    not by the certificate's issuer."""

    def __init__(
        self, host: str, port: int | None, timeout: float | None, context: ssl.SSLContext, pin: str
    ) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._pin = pin

    def connect(self) -> None:
        """Connect, and check the certificate before anything is sent."""
        super().connect()
        shown = self.sock.getpeercert(binary_form=True) or b""
        if self._pin and hashlib.sha256(shown).hexdigest() != self._pin:
            self.close()
            raise ssl.SSLError("the server's certificate is not the one that is known")


def _trust(ca_file: str | None, pin: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file or None)
    if pin:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Client:
    """Requests to one server.

    server    path of a UNIX socket, or http(s)://HOST:PORT
    token     a bearer token
    timeout   seconds for one answer
    ca_file   certificates of the authorities that may sign the server's certificate (PEM); None:
              those of the system
    pin       SHA-256 of the only certificate that is accepted, in hex, with or without colons
    sleep     waits between repetitions
    dry_run   ask what changes would do instead of making them: each raises `WouldChange`
    position  position of the last event in the stream that is followed; '': not known yet
    """

    dry_run, position = False, ""

    def __init__(
        self,
        server: str,
        token: str | None = None,
        timeout: float = 60.0,
        *,
        ca_file: str | None = None,
        pin: str = "",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.server, self._token, self._timeout = server, token, timeout
        self._ca_file, self._pin, self._sleep = ca_file, pin.replace(":", "").lower(), sleep
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, path: str, **query: Any) -> Any:
        """Return the reply to a GET. Query parameters that are None are left out."""
        return self.seen(path, **query)[0]

    def seen(self, path: str, **query: Any) -> tuple[Any, str]:
        """Return the reply to a GET of a thing, and the thing's tag. A change with this tag as
        `match` is refused if the thing has changed since."""
        reply = self._send("GET", path + _query(query), None, {})
        value = self._read(reply)
        return value, reply.getheader("ETag") or ""

    def items(self, path: str, **query: Any) -> Iterator[Any]:
        """Yield the items of a list. Further pages are fetched as they are needed."""
        query.setdefault("limit", PAGE)
        while True:
            part = self.get(path, **query)
            yield from part["items"]
            if not part.get("next"):
                return
            query["after"] = part["next"]

    def every(self, path: str, **query: Any) -> list[Any]:
        """Return all items of a list."""
        return list(self.items(path, **query))

    def newest(self, path: str, count: int, **query: Any) -> list[Any]:
        """Return the `count` newest items of a list that the API orders newest first. The oldest of
        them comes first."""
        return list(islice(self.items(path, limit=min(count, PAGE), **query), count))[::-1]

    def post(
        self, path: str, body: Any = None, key: str | None = None, match: str | None = None
    ) -> Any:
        """Return the reply to a POST. `key` is the request's own Idempotency-Key, if the caller may
        repeat it; for `match` see `seen`."""
        return self.call("POST", path, {} if body is None else body, key, match)

    def sign_in(self, **wanted: Any) -> Any:
        """Return a new token for a name and a password. The request is not repeated, because the
        server counts attempts."""
        headers = {"Content-Type": "application/json"}
        return self._read(self._once("POST", "/sign-in", json.dumps(wanted), headers))

    def patch(self, path: str, body: Any, match: str | None = None) -> Any:
        """Return the reply to a PATCH; for `match` see `seen`."""
        return self.call("PATCH", path, body, match=match)

    def delete(self, path: str, match: str | None = None) -> Any:
        """Return the reply to a DELETE; for `match` see `seen`."""
        return self.call("DELETE", path, match=match)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        key: str | None = None,
        match: str | None = None,
    ) -> Any:
        """Send one request and return the JSON reply; None if the reply has no body.

        body   sent as JSON; None: no body
        key    Idempotency-Key of a POST; None: a random one
        match  If-Match, the tag that the resource must still have

        Raises `ApiError`, `Unreachable`, and `WouldChange` instead of changing anything in a dry
        run.
        """
        if self.dry_run and method != "GET":
            path += f"{'&' if '?' in path else '?'}dry_run=true"
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if method == "POST":
            headers["Idempotency-Key"] = key or secrets.token_hex(16)
        if match:
            headers["If-Match"] = match
        reply = self._read(
            self._send(method, path, None if body is None else json.dumps(body), headers)
        )
        if self.dry_run and method != "GET":
            raise WouldChange(reply)
        return reply

    def send(
        self, method: str, path: str, body: Iterable[bytes], headers: dict[str, str]
    ) -> Mapping[str, str]:
        """Send one request whose body comes in blocks, and return the answer's headers. `headers`
        has the length of the body. The request is not repeated. For files see `cod.client.uploads`.
        """
        reply = self._once(method, path, body, dict(headers))
        self._read(reply)
        return dict(reply.headers)

    def events(self, after: int | str | None = None) -> Generator[tuple[str, Any], None, None]:
        """Yield (kind, value) of each event as it happens, without end. The kind is 'transition',
        'progress' or 'notice'. `after`: the `position` of a stream that was followed before."""
        reply = self._send(
            "GET", "/events" + ("" if after is None else f"?after={quote(str(after))}"), None, {}
        )
        if reply.status != 200:
            self._read(reply)
        kind = ""
        try:
            for line in reply:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "id":
                    self.position = value
                elif name == "data":
                    yield kind, json.loads(value)
        except OSError as error:
            raise Unreachable(f"the server at {self.server} has gone: {error}") from None
        finally:
            self.close()

    def _connect(self) -> http.client.HTTPConnection:
        url = urlsplit(self.server)
        host = url.hostname or "localhost"
        if url.scheme == "https":
            return _Tls(host, url.port, self._timeout, _trust(self._ca_file, self._pin), self._pin)
        if url.scheme == "http":
            return http.client.HTTPConnection(host, url.port, timeout=self._timeout)
        return _Unix(self.server.removeprefix("unix:"), self._timeout)

    def _send(
        self, method: str, path: str, body: Any, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        """Return the answer. While the server is busy, repeat the request if that is safe, a few
        times at most."""
        again = method == "GET" or "Idempotency-Key" in headers
        for pause in PAUSES if again else ():
            fresh = self._connection is None
            try:
                reply = self._once(method, path, body, headers)
            except Unreachable:
                if fresh:
                    raise
                continue  # the server had closed a kept connection
            if reply.status != 503:
                return reply
            reply.read()
            self._sleep(pause)
        return self._once(method, path, body, headers)

    def _once(
        self, method: str, path: str, body: Any, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        self._connection = self._connection or self._connect()
        try:
            self._connection.request(method, PREFIX + path, body, headers)
            return self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            is_there = self._connection.sock is not None
            self.close()
            if is_there and isinstance(error, TimeoutError):
                raise Unreachable(
                    f"the server at {self.server} is there, and did not answer within"
                    f" {self._timeout:g} s: `cod doctor` on its host says whether its database is"
                    " away"
                ) from None
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> Unreachable:
        if isinstance(error, PermissionError):
            return Unreachable(
                f"{self.server} is its owner's alone: be root, or use --server http://... and a"
                " token"
            )
        if isinstance(error, ssl.SSLError):
            why = getattr(error, "reason", None) or error
            return Unreachable(
                f"{self.server} cannot be trusted ({why}): name who signs its certificate"
                " (--ca-file, COD_CA_FILE) or the certificate itself (--pin, COD_PIN)"
                + self._certificate_shown()
            )
        return Unreachable(
            f"no server answers at {self.server} ({error or type(error).__name__}); "
            "is `cod serve` running?"
        )

    def _certificate_shown(self) -> str:
        """Return the end of a sentence, with the SHA-256 of the certificate that the server
        shows."""
        url = urlsplit(self.server)
        try:
            text = ssl.get_server_certificate((url.hostname or "", url.port or 443), timeout=5)
        except OSError:
            return ""
        digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(text)).hexdigest()
        return (
            f". The one that is shown has the SHA-256 {digest}: compare it with the one that stands"
            " beside your invitation"
        )

    def _read(self, reply: http.client.HTTPResponse) -> Any:
        try:
            text = reply.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable(f"the server at {self.server} broke off: {error}") from None
        if reply.status == 204:
            return None
        try:
            value = json.loads(text)
        except ValueError:
            raise ApiError(
                reply.status, "not_json", f"{self.server} does not speak COD's API"
            ) from None
        if reply.status >= 400:
            value = value if isinstance(value, dict) else {}
            raise ApiError(
                reply.status,
                value.get("code", ""),
                value.get("detail", "refused"),
                value.get("field"),
                value.get("errors") or (),
                value.get("remedies") or (),
            )
        return value
