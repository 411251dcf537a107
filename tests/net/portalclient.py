"""A browser without scripts: keeps cookies, follows redirects, fills in forms."""

from __future__ import annotations

import gzip
import http.client
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from lxml import html

from cod.flows.people.access import digest
from cod.model import Role, Who
from cod.store.engine import Tx
from cod.store.people import people, signins
from tests.net.apiserver import NOW, Served

ANN = Who("user:ann", user_id=1, admin=True)


@dataclass
class Shown:
    """An answer. `text` is its HTML, `words` what a reader sees of it."""

    browser: Browser
    path: str
    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def tree(self) -> Any:
        return html.fromstring(self.text)

    @property
    def words(self) -> str:
        return " ".join(self.tree.text_content().split())

    @property
    def title(self) -> str:
        return str(self.tree.findtext(".//title"))

    @property
    def folded(self) -> list[str]:
        """Return the faults that are told in something folded, where nobody reads them."""
        return list(self.tree.xpath("//details[not(@open)]//*[@role='alert']/text()"))

    @property
    def unfound(self) -> list[str]:
        """Return the faults of a sent form, if nothing has the focus, to which browsers scroll."""
        typed = "//form[@data-typed]//*[@role='alert']/text()"
        return [] if self.tree.xpath("//*[@autofocus]") else list(self.tree.xpath(typed))

    def fields(self, path: str) -> list[tuple[str, str]]:
        """The fields of the form that is sent to `path`, as a browser would send them untouched."""
        form = next(each for each in self.tree.forms if each.get("action") == path)
        # HTML takes the line break away that one begins with
        areas = set(form.xpath(".//textarea/@name"))
        return [
            (name, value.removeprefix("\n") if name in areas else value)
            for name, value in form.form_values()
        ]

    def send(self, path: str, **typed: Any) -> Shown:
        """Fill in the form that is sent to `path` and send it. None takes a field out; `__` stands
        for a dot."""
        return self.browser.post(path, self.filled(path, **typed))

    def filled(self, path: str, **typed: Any) -> list[tuple[str, str]]:
        values = {name.replace("__", "."): value for name, value in typed.items()}
        kept = [(name, value) for name, value in self.fields(path) if name not in values]
        return kept + [(name, str(value)) for name, value in values.items() if value is not None]


class Browser:
    """A browser that looks at https://127.0.0.1:PORT (or http, without `tls`)."""

    def __init__(
        self, port: int, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.port, self.host, self._tls = port, f"{host}:{port}", tls
        self.cookies: dict[str, str] = {}
        self.seen: list[tuple[str, str, int]] = []

    def get(self, path: str, **query: Any) -> Shown:
        return self._follow(self.ask("GET", path + (f"?{urlencode(query)}" if query else "")))

    def post(self, path: str, fields: Mapping[str, Any] | list[tuple[str, str]]) -> Shown:
        shown = self._follow(self.ask("POST", path, self.body(fields), self.form))
        if shown.status >= 400 and shown.text.strip():
            assert not shown.folded + shown.unfound
        return shown

    @staticmethod
    def body(fields: Mapping[str, Any] | list[tuple[str, str]]) -> bytes:
        return urlencode(fields).encode()

    @property
    def form(self) -> dict[str, str]:
        """The headers of a form that is sent."""
        return {
            "Content-Type": "application/x-www-form-urlencoded",
            "Origin": f"https://{self.host}",
        }

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Shown:
        """One request; redirects are not followed."""
        own = {"Host": self.host, "Accept-Encoding": "gzip"}
        if self.cookies:
            own["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if self._tls:
            connection: Any = http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=60, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, own | dict(headers or {}))
            reply = connection.getresponse()
            content = reply.read()
        finally:
            connection.close()
        if reply.getheader("Content-Encoding") == "gzip":
            content = gzip.decompress(content)
        self.seen.append((method, path, reply.status))
        self._keep(reply.headers)
        return Shown(self, path, reply.status, reply.headers, content.decode(errors="replace"))

    def _keep(self, headers: http.client.HTTPMessage) -> None:
        for line in headers.get_all("Set-Cookie", []):
            name, _, value = line.partition(";")[0].partition("=")
            if "Max-Age=0" in line:
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = value

    def _follow(self, shown: Shown) -> Shown:
        for _ in range(5):
            if shown.status != 303:
                return shown
            to = urlsplit(shown.headers["Location"])
            shown = self.ask("GET", to.path + (f"?{to.query}" if to.query else ""))
        raise AssertionError("redirects without an end")


def signed_in(served: Served, who: Who = ANN, now: float = NOW) -> Browser:
    """A browser that is signed in as `who` since `now`, a user who is made so, with the roles that
    it has."""
    browser = Browser(served.server.ports[0])
    browser.cookies["__Host-cod"] = secret = secrets.token_urlsafe(32)
    served.tx(_session, who, digest(secret), now)
    return browser


def _session(tx: Tx, who: Who, cookie: str, now: float) -> None:
    name = who.name.removeprefix("user:")
    user = people.by_name(tx, name) or people.add(tx, name, NOW, admin=who.admin)
    for group, role in who.roles.items():
        people.set_role(tx, group, user.id, role)
    signins.add(
        tx, cookie, user.id, now, expires_at=now + 86400, address="127.0.0.1", browser="test"
    )


def member(name: str, **roles: str) -> Who:
    """A person with roles by group id: member('bob', g1='owner')."""
    return Who(
        f"user:{name}",
        user_id=2,
        roles={int(group[1:]): Role(role) for group, role in roles.items()},
    )
