"""What a route of the REST API is, and how one is found. The routes themselves are in `web.resources`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pydantic import BaseModel

from cod.flows.people.access import Claim
from cod.model import SITE, Page, Right, Site, Who
from cod.model import part as part_of
from cod.security.ca import Ca
from cod.web.models import Reply

Flow = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A checked question.

    names   the path's parameters
    body    the checked JSON body, or None
    query   the checked query string, or None
    images  the folder that images are served from
    who     who asks
    key     the Idempotency-Key header: the client's id for a request, repeating which is harmless
    webhook_key   the secret that webhooks' keys are derived from
    authority     the site's certificate authority for VCMs
    consoles      the folder that consoles are kept in; None: nowhere
    host          the name and port by which a browser that asks has reached this server; '' for programs
    fingerprint   SHA-256 of the web server's certificate, hex; '': it has none of its own
    prepared      what the route's `before` made of the question
    """

    site: Site
    now: float
    who: Who
    images: Path
    names: Mapping[str, str]
    body: Any = None
    query: Any = None
    key: str | None = None
    webhook_key: bytes = field(default=b"", repr=False)
    authority: Ca | None = field(default=None, repr=False)
    consoles: Path | None = None
    host: str = ""
    fingerprint: str = ""
    prepared: Any = None

    @property
    def is_stranger(self) -> bool:
        """Has nobody signed in? Only routes that are `open` are asked so."""
        return self.who.name == "nobody"

    @property
    def actor(self) -> str:
        """Who asks, as the history shows it."""
        return self.who.name


Claims = Callable[[Call], Sequence[Claim]]


def ANYBODY(ask: Call) -> Sequence[Claim]:
    """Everybody who is signed in; a list shows what they may see of it."""
    return (Claim(Right.ANY),)


def ADMINS(ask: Call) -> Sequence[Claim]:
    """The site's administrators."""
    return (Claim(Right.ADMIN),)


def see(kind: str, part: str = "name") -> Claims:
    """Those who may look at the thing that this part of the path names."""
    return _wanting(Right.SEE, kind, part, f"Who may look at the {kind}: everybody in its group.")


def use(kind: str, part: str = "name") -> Claims:
    """Those who work with it."""
    return _wanting(Right.USE, kind, part, f"Who works with the {kind}: members and owners of its group.")


def manage(kind: str, part: str = "name") -> Claims:
    """The owners of its group."""
    return _wanting(Right.MANAGE, kind, part, f"Who may say who else may: owners of the {kind}'s group.")


def _wanting(right: Right, kind: str, part: str, about: str) -> Claims:
    def wants(ask: Call) -> Sequence[Claim]:
        return (Claim(right, kind, ask.names[part]),)

    wants.__doc__ = about  # shown in the API's document
    return wants


def owner(group: str) -> Claim:
    """Return the right to make an image or template: for a group its members', for the site ('' or 'site', as
    `store.people.groups.owner_id` takes it) its administrators', because everybody runs what is the site's."""
    return Claim(Right.ADMIN) if group in ("", SITE) else Claim(Right.USE, "group", group)


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    claims   the rights that a question wants
    call     the flow (a function of tx) for a question
    before   something slow to do with the question before its flow, in a thread that is no database's: see
             `Ask.prepared`
    work     something slow to do with the flow's value, in a thread; the reply is what it returns
    shape    the reply for the flow's value; None where there is nothing to say (204)
    reply    the model of what `shape` makes, for the document
    status   of success
    local    only for the local administrator on the UNIX socket
    secret   it shows a secret: not for a token that may only read
    upload   of one resumable upload: `web.uploads.request` answers, by the tus protocol
    act      what to do in place of a flow, where that takes more than one transaction: given
             `signin.service.SignIn` and the question; its value is the reply
    open     for those who have not signed in yet, too
    dear     it costs the server so much that each person has a ration of such questions
    quiet    it changes nothing, though its question needs a body: whoever may look may ask
    sketch   of a GET: a flow that makes a short reply in place of the whole, for the audit to compare before and after
    makes    the path of what it makes, with fields of its reply in braces; '': it changes what its own path names
    action   its name in the audit, where `web.audit_changes.action` does not find a good one
    """

    method: str
    path: str
    claims: Claims
    summary: str
    call: Callable[[Call], Flow]
    shape: Callable[[Any], BaseModel] | None = None
    work: Callable[[Call, Any], BaseModel] | None = None
    reply: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    status: int = 200
    local: bool = False
    secret: bool = False
    upload: bool = False
    act: Callable[[Any, Call], Awaitable[Any]] | None = None
    open: bool = False
    before: Callable[[Call], Any] | None = None
    dear: bool = False
    quiet: bool = False
    sketch: Callable[[Call], Flow] | None = None
    makes: str = ""
    action: str = ""

    @property
    def changes(self) -> bool:
        """Does it change anything (so that a token that may only read is refused)?"""
        return self.method != "GET" and not self.quiet

    def shown(self, value: Any, who: Who) -> BaseModel | None:
        """The reply for the flow's value, with what `who` may know of it; None where there is nothing to say."""
        return None if self.shape is None else open_to(self.shape(value), who)


def open_to(reply: BaseModel, who: Who) -> BaseModel:
    """The reply without what `who` may not know of it."""
    return reply.for_others() if isinstance(reply, Reply) and not who.admin else reply


def route(method: str, path: str, claims: Claims, summary: str, call: Callable[[Call], Flow], **rest: Any) -> Route:
    """A route whose `shape` is its reply model's own constructor unless it is given."""
    reply = rest.get("reply")
    if reply is not None and "act" in rest:
        rest["shape"] = _as_is
    elif reply is not None and not {"shape", "work"} & rest.keys():
        rest["shape"] = getattr(reply, "of_parts", None) or getattr(reply, "of", None) or reply.model_validate
    return Route(method, path, claims, summary, call, **rest)


def _as_is(value: Any) -> Any:
    return value


def nothing(value: Any) -> Flow:
    """A flow that asks the database nothing and returns `value`."""
    return lambda tx: value


def listed(reply: type[BaseModel], item: Callable[[Any], BaseModel]) -> Callable[[Any], BaseModel]:
    """The shape of a list reply whose items are shaped by `item`."""
    def shape(values: Any) -> BaseModel:
        part = {name: getattr(values, name, None) for name in ("next", "total") if name in reply.model_fields}
        return reply(items=[item(each) for each in values], **part)
    return shape


def in_parts(
    flow: Flow, page: Page, texts: Callable[[Any], Iterable[str]], default: str = "name",
    **keys: Callable[[Any], Any],
) -> Flow:
    """A flow that returns a short list, as one that returns the part of it that is asked for. `keys`: what it can be
    ordered by; `default` among them is unique; `texts` are searched for `q`."""
    return lambda tx: part_of(flow(tx), page, keys, default, keys[default.removeprefix("-")], texts)


def number(text: str) -> int:
    """A row's id from a path; what is none is the id of nothing."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1


def unquoted(path: str) -> str:
    """A request's path with each of its segments unquoted."""
    return "/".join(unquote(part, errors="replace") for part in path.split("/"))


def find(routes: Iterable[Route], method: str, path: str) -> tuple[Route | None, dict[str, str], list[str]]:
    """The route for a request, the path's parameters, and the methods that the path has (none: no such path)."""
    methods: list[str] = []
    for each in routes:
        names = matched(each.path, path)
        if names is None:
            continue
        if each.method == method:
            return each, names, [method]
        methods.append(each.method)
    return None, {}, methods


OWNED = ("images", "templates")
"""What has its group's name before its own. Of their paths the name may be one segment or two: /images/debian,
/images/physics/debian, and physics%2Fdebian, which `unquoted` has made the same."""


def unquoted_in(path: str) -> str:
    """Return the characters that stay as they are in names in a path of that kind: many a proxy refuses `%2F`."""
    return "/" if path.split("/")[1] in OWNED else ""


def matched(pattern: str, path: str) -> dict[str, str] | None:
    """The parameters of `path` (already unquoted by segment) under `pattern`, or None where it does not fit."""
    wanted, given = pattern.split("/"), path.split("/")
    if len(given) == len(wanted) + 1 and wanted[1] in OWNED and wanted[2:3] == ["{name}"] and given[2] and given[3]:
        given[2:4] = ["/".join(given[2:4])]
    if len(wanted) != len(given):
        return None
    names = {}
    for part, value in zip(wanted, given, strict=True):
        if part.startswith("{") and value:
            names[part[1:-1]] = value
        elif part != value:
            return None
    return names
