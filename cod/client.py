"""A small client of the REST API, over the server's UNIX socket or HTTP(S). Standard library only.

    with Client("/var/lib/cod/run/api.sock") as cod:
        for node in cod.get("/nodes", state="inactive")["items"]:
            print(node["name"])
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode, urlsplit

PREFIX = "/api/v1"
SITE_FILE = "/etc/cod/site.toml"


class ApiError(Exception):
    """The server refused: `status`, stable `code`, a sentence, and the `field` that is meant, if one is."""

    def __init__(self, status: int, code: str, detail: str, field: str | None = None) -> None:
        super().__init__(f"{field}: {detail}" if field and status == 422 else detail)
        self.status, self.code, self.detail, self.field = status, code, detail, field


class Unreachable(Exception):
    """No server answers; the sentence says where it was looked for and what to do."""


def find_server(site_file: str | None = None) -> str:
    """Where the server is: $COD_SERVER, or the UNIX socket of the site file (`site_file`, $COD_SITE, the usual one)."""
    if not site_file and os.environ.get("COD_SERVER"):
        return os.environ["COD_SERVER"]
    path = Path(site_file or os.environ.get("COD_SITE") or SITE_FILE)
    try:
        site = tomllib.loads(path.read_text())
        data = site.get("server", {}).get("data_dir", "/var/lib/cod")
    except (OSError, ValueError, AttributeError) as error:
        raise Unreachable(f"no server is named: give --server, COD_SERVER or --site ({path}: {error})") from None
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


def path(*parts: str | int) -> str:
    """A path with each part quoted: path('nodes', 'n1', 'power')."""
    return "".join(f"/{quote(str(part), safe='')}" for part in parts)


class Client:
    """Requests to one server. `server`: path of a UNIX socket, or http(s)://HOST:PORT; `timeout` in seconds."""

    def __init__(self, server: str, token: str | None = None, timeout: float = 60.0) -> None:
        self.server, self._token, self._timeout = server, token, timeout
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, path: str, **query: Any) -> Any:
        """GET; query parameters that are None are left out."""
        query = {key: str(value).lower() if isinstance(value, bool) else value
                 for key, value in query.items() if value is not None}
        return self.call("GET", path + (f"?{urlencode(query)}" if query else ""))

    def every(self, path: str, **query: Any) -> list[Any]:
        """All items of a list, page by page."""
        items: list[Any] = []
        while True:
            page = self.get(path, **query)
            items += page["items"]
            if not page.get("next"):
                return items
            query["after"] = page["next"]

    def post(self, path: str, body: Any = None, key: str | None = None) -> Any:
        """POST; `key` is an Idempotency-Key."""
        return self.call("POST", path, {} if body is None else body, key)

    def patch(self, path: str, body: Any) -> Any:
        """PATCH."""
        return self.call("PATCH", path, body)

    def delete(self, path: str) -> Any:
        """DELETE."""
        return self.call("DELETE", path)

    def call(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        """One request with a JSON body; the JSON reply, or None where there is none. Raises ApiError, Unreachable."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if key:
            headers["Idempotency-Key"] = key
        return self._read(self._send(method, path, None if body is None else json.dumps(body), headers))

    def upload(self, path: str, file: BinaryIO, **query: Any) -> Any:
        """PUT a file's content."""
        query = {key: value for key, value in query.items() if value is not None}
        size = os.fstat(file.fileno()).st_size
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        return self._read(self._send("PUT", path + (f"?{urlencode(query)}" if query else ""), file, headers))

    def events(self, after: int | None = None) -> Iterator[tuple[str, Any]]:
        """(kind, value) of each event as it happens, for ever: 'transition', 'progress' or 'notice'."""
        reply = self._send("GET", "/events" + ("" if after is None else f"?after={after}"), None, {})
        if reply.status != 200:
            self._read(reply)
        kind = ""
        try:
            for line in reply:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    yield kind, json.loads(value)
        except OSError as error:
            raise Unreachable(f"the server at {self.server} has gone: {error}") from None
        finally:
            self.close()

    def _connect(self) -> http.client.HTTPConnection:
        if self.server.startswith(("http://", "https://")):
            url = urlsplit(self.server)
            kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
            return kind(url.hostname or "localhost", url.port, timeout=self._timeout)
        return _Unix(self.server.removeprefix("unix:"), self._timeout)

    def _send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> http.client.HTTPResponse:
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        fresh = self._connection is None
        self._connection = self._connection or self._connect()
        try:
            self._connection.request(method, PREFIX + path, body, headers)
            return self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not fresh and method == "GET":  # a kept connection that the server has closed meanwhile
                return self._send(method, path, body, headers)
            if isinstance(error, PermissionError):
                raise Unreachable(f"{self.server} is its owner's alone: be root, or use --server http://... and a token"
                                  ) from None
            raise Unreachable(f"no server answers at {self.server} ({error or type(error).__name__}); "
                              "is `cod serve` running?") from None

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
            raise ApiError(reply.status, "not_json", f"{self.server} does not speak COD's API") from None
        if reply.status >= 400:
            value = value if isinstance(value, dict) else {}
            raise ApiError(reply.status, value.get("code", ""), value.get("detail", "refused"), value.get("field"))
        return value
