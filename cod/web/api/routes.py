"""The types of the REST API's routes, and the search for a route. The routes themselves are in
`web.api.resources`.

A route is typed from the request to the reply. mypy refuses a route that reads a name, a field or a
parameter that its path, its body or its query string does not have, or whose reply is not made from
what its flow returns. Body, query string and reply are pydantic models. The names in a path are a
record (`Names`), because a type checker cannot read the path's pattern. That record and pattern
agree is checked when the route is made.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Generic, Protocol

from pydantic import BaseModel, create_model
from typing_extensions import TypeVar

from cod.flows.people.access import RequiredRight
from cod.model import (
    SITE,
    DatabaseHost,
    FlowContext,
    Listed,
    Page,
    Refused,
    Result,
    Right,
    SettingRules,
    SingleRight,
    Site,
    Who,
)
from cod.model import part as part_of
from cod.pool import Tx
from cod.security.signer import VcmAuthority
from cod.web.api.models import Items, ListPage, Reply
from cod.web.signin.service import SignIn


@dataclass(frozen=True)
class Names:
    """The names in a request's path, as text. A subclass has a field for each {name} of its path
    pattern; this class is for paths without any."""

    def texts(self) -> dict[str, str]:
        """Return the values by name, in the path's order."""
        return dict(vars(self))


class Thing(Names):
    """The names in the path of a resource that has access rights of its own."""

    @property
    def key(self) -> str:
        """Return the resource's name or number, as `flows.people.access.RequiredRight` takes it."""
        return str(next(iter(vars(self).values())))


@dataclass(frozen=True)
class Named(Thing):
    """The name of a resource: /groups/{name}."""

    name: str


@dataclass(frozen=True)
class Numbered(Thing):
    """The id of a resource: /requests/{id}."""

    id: str


@dataclass(frozen=True)
class NamedMember(Named):
    """The names of a group and of a user in it."""

    user: str


@dataclass(frozen=True)
class NamedNumber(Named):
    """The name of a resource, and the id of a part of it."""

    id: str


@dataclass(frozen=True)
class NamedLabel(Named):
    """The name of a vcluster, and a name in its zone."""

    label: str


_RECORDS = (Names, Named, Numbered, NamedMember, NamedNumber, NamedLabel)

N_co = TypeVar("N_co", bound=Names, covariant=True, default=Names)
B_co = TypeVar("B_co", bound=BaseModel, covariant=True, default=BaseModel)
Q_co = TypeVar("Q_co", bound=BaseModel, covariant=True, default=BaseModel)
N = TypeVar("N", bound=Names, default=Any)
B = TypeVar("B", bound=BaseModel, default=Any)
Q = TypeVar("Q", bound=BaseModel, default=Any)
V = TypeVar("V", default=Any)
N_contra = TypeVar("N_contra", bound=Names, contravariant=True, default=Any)
B_contra = TypeVar("B_contra", bound=BaseModel, contravariant=True, default=Any)
Q_contra = TypeVar("Q_contra", bound=BaseModel, contravariant=True, default=Any)
V_contra = TypeVar("V_contra", contravariant=True, default=Any)
R = TypeVar("R", bound=BaseModel, default=Any)
T = TypeVar("T", default=Any)

Flow = Callable[[Tx], V]
"""A flow with its arguments bound: it runs in a transaction, and returns the flow's value."""


@dataclass(frozen=True, slots=True)
class Call(Generic[N_co, B_co, Q_co]):
    """A checked request.

    names         the values of the names in the path
    body          the checked JSON body; None if the route has no model of one
    query         the checked query string; None if the route has no model of one
    images        the folder that images are served from
    who           the caller
    key           the Idempotency-Key header: the client's id for a request, repeating which is
                  harmless
    webhook_key   the secret that webhooks' keys are derived from
    authority     the site's certificate authority for VCMs
    consoles      the folder that consoles are kept in; None: consoles are not kept
    settings      the site file and its changes; None: the server was made without a site file
    database      the database's hosts, as they described themselves lately; (): none was asked
    host          the name and port by which the caller's browser reached this server; '' for
                  programs
    fingerprint   SHA-256 of the web server's certificate, hex; '': the server has no certificate of
                  its own
    prepared      what the route's `before` returned for this request
    """

    site: Site
    now: float
    who: Who
    images: Path
    names: N_co
    body: B_co
    query: Q_co
    key: str | None = None
    webhook_key: bytes = field(default=b"", repr=False)
    authority: VcmAuthority | None = field(default=None, repr=False)
    consoles: Path | None = None
    settings: SettingRules | None = field(default=None, repr=False)
    database: tuple[DatabaseHost, ...] = ()
    host: str = ""
    fingerprint: str = ""
    prepared: Any = None

    @property
    def rules(self) -> SettingRules:
        """Return the site file and its changes. Raises `Refused` if the server has read none."""
        if self.settings is None:
            raise Refused("not_found", "this server has read no site file")
        return self.settings

    @property
    def is_stranger(self) -> bool:
        """Return whether the caller has not signed in, which only `open` routes allow."""
        return self.who.name == "nobody"

    @property
    def actor(self) -> str:
        """Return the caller's name as histories show it."""
        return self.who.name

    @property
    def context(self) -> FlowContext:
        """Return the flow's context: site, time, caller and key."""
        return FlowContext(self.site, self.now, self.who, self.key)


Claims = Callable[[Call[N, B, Q]], Sequence[RequiredRight]]
CLAIMS = "Return the rights of "
"""The beginning of the docstring of every claims function. The OpenAPI document shows the rest."""


def ANYBODY(ask: Call) -> Sequence[RequiredRight]:
    """Return the rights of everybody who is signed in. A list shows what they may see."""
    return (RequiredRight(Right.ANY),)


def ADMINS(ask: Call) -> Sequence[RequiredRight]:
    """Return the rights of the site's administrators."""
    return (RequiredRight(Right.ADMIN),)


ThingClaims = Callable[[Call[Thing]], Sequence[RequiredRight]]


def see(kind: str) -> ThingClaims:
    """Return the claims function for everybody in the group of the thing that the path names."""
    return _wanting(Right.SEE, kind, "everybody in")


def use(kind: str, single: SingleRight | None = None) -> ThingClaims:
    """Return the claims function for members and owners of the thing's group, and for users with
    the single right."""
    return _wanting(Right.USE, kind, "members and owners of", single)


def manage(kind: str) -> ThingClaims:
    """Return the claims function for owners of the thing's group."""
    return _wanting(Right.MANAGE, kind, "owners of")


def _wanting(right: Right, kind: str, whose: str, single: SingleRight | None = None) -> ThingClaims:
    def wants(ask: Call[Thing]) -> Sequence[RequiredRight]:
        return (RequiredRight(right, kind, ask.names.key, single),)

    group = "the group" if kind == "group" else f"the {kind}'s group"
    others = f", and of users with the single right {single!s}" if single else ""
    wants.__doc__ = f"{CLAIMS}{whose} {group}{others}."  # the OpenAPI document shows it
    return wants


def seen(kind: str, name: str | None, field: str = "name") -> RequiredRight:
    """Return the right of everybody in the group of the thing called `name`, in that field. Without
    a name, return the right of everybody who is signed in."""
    return RequiredRight(Right.SEE, kind, name, field=field) if name else RequiredRight(Right.ANY)


def owner(group: str) -> RequiredRight:
    """Return the right to make an image or template for `group`. For a group, its members and
    owners have that right. For the site ('' or 'site', as `store.people.groups.owner_id` takes it)
    only administrators have it, because everybody runs the site's images and templates."""
    return (
        RequiredRight(Right.ADMIN)
        if group in ("", SITE)
        else RequiredRight(Right.USE, "group", group, field="group")
    )


@dataclass(frozen=True, slots=True)
class Route(Generic[N, B, Q, V]):
    """One method of one path.

    claims      the rights that a request needs
    call        returns the flow (a function of tx) for a request
    before      slow work on the request before its flow, in a thread that is not a database thread;
                for its result see `Call.prepared`
    work        slow work on the flow's value, in a thread; returns the reply
    simulated   the flow's value is a question to the simulator, and `shape` gets the simulator's
                answer
    shape       returns the reply for the flow's value; None if the route sends no body (204), or if
                `work` makes the reply
    reply       the model of the reply
    names       the record of the names in the path
    status      the HTTP status of a success
    local       only for the local administrator on the UNIX socket
    secret      the reply has a secret: refused to a token that may only read
    upload      a route of one resumable upload: `web.api.upload_body` answers, by the tus protocol
    act         what runs in place of a flow, if more than one transaction is needed; its value is
                the value that the reply is made from
    open        also for callers who have not signed in
    dear        costs the server much: each person has a ration of requests to such routes
    measures    also for tokens of monitoring systems
    quiet       changes nothing, though the method is not GET, because the request needs a body: a
                token that may only read may send it
    audit_view  of a GET: returns a flow whose short reply the audit compares before and after a
                change, in place of the whole reply
    makes       the path of the thing that the route makes, with fields of its reply in braces; '':
                the route changes the thing that its own path names
    puts        a PUT that makes the thing that its path names, if the thing does not exist; the
                status is then 201
    ends        the thing that the path names no longer exists afterwards, though the reply shows it
    idle        returns whether the flow's value says that nothing was changed: then the audit has
                no row
    action      its name in the audit, if `web.api.things` would not derive a good one
    """

    method: str
    path: str
    claims: Claims[N, B, Q]
    summary: str
    call: Callable[[Call[N, B, Q]], Flow[V | Result[V]]]
    shape: Callable[[V], BaseModel] | None = None
    work: Callable[[Call[N, B, Q], V], BaseModel] | None = None
    reply: type[BaseModel] | None = None
    names: type[Names] = Names
    body: type[B] | None = None
    query: type[Q] | None = None
    status: int = 200
    local: bool = False
    secret: bool = False
    upload: bool = False
    act: Callable[[SignIn, Call[N, B, Q]], Awaitable[V]] | None = None
    open: bool = False
    before: Callable[[Call[N, B, Q]], Any] | None = None
    dear: bool = False
    measures: bool = False
    quiet: bool = False
    audit_view: Callable[[Call[N, B, Q]], Flow[BaseModel]] | None = None
    makes: str = ""
    puts: bool = False
    ends: bool = False
    idle: Callable[[V], bool] | None = None
    action: str = ""
    simulated: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError unless the path and the record have the same names."""
        check_names(self.path, self.names)

    @property
    def changes(self) -> bool:
        """Return whether the route changes anything, so that a token that may only read is
        refused."""
        return self.method != "GET" and not self.quiet

    @property
    def can_be_tried(self) -> bool:
        """Return whether the route supports `dry_run`: all its changes are in the database, in one
        transaction."""
        return self.changes and self.act is None and not self.upload

    @property
    def is_keyed(self) -> bool:
        """Return whether the route supports `Idempotency-Key`."""
        # routes with slow work change nothing that lasts, unless they make a secret
        slow = self.work is not None and not self.secret
        return self.changes and self.method == "POST" and not slow and self.act is None

    def shown(self, value: V, who: Who) -> BaseModel | None:
        """Return the reply for the flow's value, without what `who` may not see; None if the route
        sends no body."""
        return None if self.shape is None else open_to(self.shape(value), who)


def check_names(path: str, names: type[Names]) -> None:
    """Raise ValueError unless the fields of `names` are those that the path pattern has in braces,
    in the same order."""
    wanted, given = re.findall(r"\{(\w+)\}", path), [each.name for each in fields(names)]
    if wanted != given:
        raise ValueError(f"{path} has the names {wanted}, and {names.__name__} has {given}")


def named(path: str, values: Mapping[str, str]) -> Names:
    """Return the record for the names in the path pattern, filled from those of `values` that it
    has fields for."""
    wanted = re.findall(r"\{(\w+)\}", path)
    record = next(each for each in _RECORDS if [one.name for one in fields(each)] == wanted)
    return record(**{name: values[name] for name in wanted})


def open_to(reply: BaseModel, who: Who) -> BaseModel:
    """Return the reply without what `who` may not see."""
    return reply.for_others() if isinstance(reply, Reply) and not who.admin else reply


class MadeOf(Protocol[V_contra]):
    """A maker of replies from values of the type `V_contra`: the reply model itself, or a
    `Shaped`."""

    def of(self, value: V_contra, /) -> BaseModel:
        """Make the reply."""


@dataclass(frozen=True, slots=True)
class Shaped(Generic[V_contra, R]):
    """A reply model, and the function that makes the reply from a flow's value."""

    model: type[R]
    of: Callable[[V_contra], R]


@dataclass(frozen=True, slots=True)
class Worked(Generic[N_contra, B_contra, Q_contra, V_contra, R]):
    """A reply model, and the slow function, run in a thread, that makes the reply from the request
    and the flow's value."""

    model: type[R]
    work: Callable[[Call[N_contra, B_contra, Q_contra], V_contra], R]


@dataclass(frozen=True, slots=True)
class RouteMaker(Generic[N]):
    """A maker of routes whose paths have the names of one record. Its instances, such as
    `named_route`, follow."""

    names: type[N]

    def __call__(
        self,
        operation: str,
        claims: Claims[N, B, Q],
        summary: str,
        call: Callable[[Call[N, B, Q]], Flow[V | Result[V]]],
        *,
        reply: MadeOf[V] | Worked[N, B, Q, V, Any] | None = None,
        body: type[B] | None = None,
        query: type[Q] | None = None,
        act: Callable[[SignIn, Call[N, B, Q]], Awaitable[V]] | None = None,
        before: Callable[[Call[N, B, Q]], Any] | None = None,
        audit_view: Callable[[Call[N, B, Q]], Flow[BaseModel]] | None = None,
        status: int = 0,
        makes: str = "",
        **rest: Any,
    ) -> Route[N, B, Q, V]:
        """Return a route; see `Route`. Raises ValueError for a path with other names than those of
        the record.

        operation  the method and the path: "GET /nodes"
        reply      a model with a class method `of`; or a `Shaped`, or a `Worked`
        status     0: 204 without a reply, 201 if the route makes something, else 200
        """
        method, path = operation.split(" ")
        return Route(
            method,
            path,
            claims,
            summary,
            call,
            getattr(reply, "of", None),
            getattr(reply, "work", None),
            reply if isinstance(reply, type) else getattr(reply, "model", None),
            self.names,
            body,
            query,
            act=act,
            before=before,
            audit_view=audit_view,
            status=status or (204 if reply is None else 201 if makes else 200),
            makes=makes,
            **rest,
        )


route = RouteMaker(Names)
named_route = RouteMaker(Named)
numbered_route = RouteMaker(Numbered)
member_route = RouteMaker(NamedMember)
part_route = RouteMaker(NamedNumber)
label_route = RouteMaker(NamedLabel)


def as_it_is(model: type[R]) -> Shaped[R, R]:
    """Return the reply for a flow that makes the reply itself."""
    return Shaped(model, lambda value: value)


def nothing(value: T) -> Flow[T]:
    """Return a flow that does not use the database, and returns `value`."""
    return lambda tx: value


def listed(
    item: MadeOf[T], about: str, name: str = "", *, kind: Any = Items
) -> Shaped[Sequence[T], Items[Any]]:
    """Return the reply for a list, whose items are replies made by `item`.

    about  the OpenAPI document's description of the list
    name   the list's name there; '': the item's name and 'List'
    kind   `Items` or `ListPage`
    """
    model: Any = getattr(item, "model", item)
    reply = _list_model(kind, model, about, name)
    paging = [name for name in ("next", "total") if name in reply.model_fields]

    def shape(values: Sequence[T]) -> Items[Any]:
        page = {name: getattr(values, name, None) for name in paging}
        made: Items[Any] = reply(items=[item.of(value) for value in values], **page)
        return made

    return Shaped(reply, shape)


def paged(item: MadeOf[T], about: str, name: str = "") -> Shaped[Sequence[T], Items[Any]]:
    """Return the reply for one page of a list; see `listed`."""
    return listed(item, about, name, kind=ListPage)


@cache
def _list_model(kind: Any, item: Any, about: str, name: str) -> Any:
    """Return the model of a list of items."""
    name = name or item.__name__.removesuffix("Reply") + "List"
    return create_model(name, __base__=kind[item], __doc__=about)


def in_parts(
    flow: Flow[list[T]],
    page: Page,
    texts: Callable[[T], Iterable[str]],
    default: str = "name",
    **keys: Callable[[T], Any],
) -> Flow[Listed[T]]:
    """Return a flow that returns the page asked for, given a flow that returns a whole, short list.

    texts    returns the texts of an item in which `q` is searched
    default  the key that orders the list by default, among `keys`; unique
    keys     the keys by which the list can be ordered
    """
    return lambda tx: part_of(flow(tx), page, keys, default, keys[default.removeprefix("-")], texts)


def number(text: str) -> int:
    """Return the row id in a path; -1, which no row has, if the text is not a number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1


class RouteMap:
    """An index of routes by the first segment of their paths, the number of segments, and the last
    segment. None stands for a last segment that is a name."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_shape: dict[tuple[str, int, str | None], list[Route]] = {}
        for each in routes:
            parts = each.path.split("/")
            last = None if parts[-1].startswith("{") else parts[-1]
            self._by_shape.setdefault((parts[1], len(parts), last), []).append(each)

    def find(self, method: str, path: str) -> tuple[Route | None, dict[str, str], list[str]]:
        """Return the route for a request, the values of the names in its path, and the path's
        methods. The route is None if there is none for the method; the methods are empty if there
        is no such path."""
        parts = path.split("/")
        head, length = (*parts, "")[1], len(parts)
        methods: list[str] = []
        for size in (length, length - 1) if head in OWNED else (length,):
            for last in (parts[-1], None):
                for each in self._by_shape.get((head, size, last), ()):
                    names = matched(each.path, path)
                    if names is None:
                        continue
                    if each.method == method:
                        return each, names, [method]
                    methods.append(each.method)
        return None, {}, methods


OWNED = ("images", "templates", "volumes")
"""Collections of things whose names may begin with their group's name. In a path such a name is one
segment or two: /images/debian, or /images/physics/debian. `unquoted` has turned physics%2Fdebian
into the latter."""


def unquoted_in(path: str) -> str:
    """Return the characters that are not quoted in names in such a path. The slash of a full name
    stays, because many proxies refuse `%2F`."""
    return "/" if path.split("/")[1] in OWNED else ""


def matched(pattern: str, path: str) -> dict[str, str] | None:
    """Return the values of the names in `path` (already unquoted by segment) under `pattern`; None
    if the path does not match."""
    wanted, given = pattern.split("/"), path.split("/")
    if (
        len(given) == len(wanted) + 1
        and wanted[1] in OWNED
        and wanted[2:3] == ["{name}"]
        and given[2]
        and given[3]
    ):
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
