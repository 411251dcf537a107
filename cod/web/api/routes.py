"""Routes of the REST API, and the search for one. The routes themselves are in `web.api.resources`.

A route is typed from the question to the reply: mypy refuses one that reads what its path, its body
or its query string has not, or whose reply is not made of what its flow returns. Body, query string
and reply are pydantic models; what a path names is a record (`Names`), because a type checker
cannot read the pattern; that both say the same is checked when the route is made.
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
        """Return the resource's name or number, as `flows.people.access.Claim` takes it."""
        return str(next(iter(vars(self).values())))


@dataclass(frozen=True)
class Named(Thing):
    """A thing by its name."""

    name: str


@dataclass(frozen=True)
class Numbered(Thing):
    """A thing by its id."""

    id: str


@dataclass(frozen=True)
class NamedMember(Named):
    """A group by name, and a user in it."""

    user: str


@dataclass(frozen=True)
class NamedNumber(Named):
    """A thing by name, and something of it by id."""

    id: str


@dataclass(frozen=True)
class NamedLabel(Named):
    """A vcluster by name, and a name in it."""

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
"""What is run in a transaction, its arguments given; its value."""


@dataclass(frozen=True, slots=True)
class Call(Generic[N_co, B_co, Q_co]):
    """A checked question.

    names   what the path names
    body    the checked JSON body; None where the route has no model of one
    query   the checked query string; None where the route has no model of one
    images  the folder that images are served from
    who     who asks
    key     the Idempotency-Key header: the client's id for a request, repeating which is harmless
    webhook_key   the secret that webhooks' keys are derived from
    authority     the site's certificate authority for VCMs
    consoles      the folder that consoles are kept in; None: nowhere
    settings      the site file and changes of it; None: the server was made without one
    host          the name and port by which a browser that asks has reached this server; '' for
                  programs
    fingerprint   SHA-256 of the web server's certificate, hex; '': it has none of its own
    prepared      what the route's `before` made of the question
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
    host: str = ""
    fingerprint: str = ""
    prepared: Any = None

    @property
    def rules(self) -> SettingRules:
        """Return the site file and changes of it. Raises `Refused`."""
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
"""How the docstring of every function of claims begins: the API's document shows the rest."""


def ANYBODY(ask: Call) -> Sequence[RequiredRight]:
    """Return the rights of everybody who is signed in. A list shows what they may see."""
    return (RequiredRight(Right.ANY),)


def ADMINS(ask: Call) -> Sequence[RequiredRight]:
    """Return the rights of the site's administrators."""
    return (RequiredRight(Right.ADMIN),)


ThingClaims = Callable[[Call[Thing]], Sequence[RequiredRight]]


def see(kind: str) -> ThingClaims:
    """Return claims of everybody in the group of the thing that the path leads to."""
    return _wanting(Right.SEE, kind, "everybody in")


def use(kind: str, single: SingleRight | None = None) -> ThingClaims:
    """Return claims of members and owners of the thing's group, and of users with the single
    right."""
    return _wanting(Right.USE, kind, "members and owners of", single)


def manage(kind: str) -> ThingClaims:
    """Return claims of owners of the thing's group."""
    return _wanting(Right.MANAGE, kind, "owners of")


def _wanting(right: Right, kind: str, whose: str, single: SingleRight | None = None) -> ThingClaims:
    def wants(ask: Call[Thing]) -> Sequence[RequiredRight]:
        return (RequiredRight(right, kind, ask.names.key, single),)

    group = "the group" if kind == "group" else f"the {kind}'s group"
    others = f", and of users with the single right {single!s}" if single else ""
    wants.__doc__ = f"{CLAIMS}{whose} {group}{others}."  # shown in the API's document
    return wants


def seen(kind: str, name: str | None) -> RequiredRight:
    """Return the right of everybody in the group of the thing that is named; of everybody who is
    signed in, where none is."""
    return RequiredRight(Right.SEE, kind, name) if name else RequiredRight(Right.ANY)


def owner(group: str) -> RequiredRight:
    """Return the right to make an image or template: for a group its members', for the site ('' or
    'site', as `store.people.groups.owner_id` takes it) its administrators', because everybody runs
    what is the site's."""
    return (
        RequiredRight(Right.ADMIN)
        if group in ("", SITE)
        else RequiredRight(Right.USE, "group", group)
    )


@dataclass(frozen=True, slots=True)
class Route(Generic[N, B, Q, V]):
    """One method of one path.

    claims      the rights that a question wants
    call        the flow (a function of tx) for a question
    before      something slow to do with the question before its flow, in a thread that is no
                database's: see `Call.prepared`
    work        something slow to do with the flow's value, in a thread; the reply is what it
                returns
    simulated   the flow's value is a question to the simulator, and `shape` gets the answer
    shape       the reply for the flow's value; None where there is nothing to say (204), or `work`
                makes it
    reply       the model of the reply
    names       the record of what the path names
    status      of success
    local       only for the local administrator on the UNIX socket
    secret      it shows a secret: not for a token that may only read
    upload      of one resumable upload: `web.api.upload_body` answers, by the tus protocol
    act         what to do in place of a flow, where that takes more than one transaction; its value
                is the reply
    open        for those who have not signed in yet, too
    dear        it costs the server so much that each person has a ration of such questions
    measures    for tokens of monitoring systems, too
    quiet       it changes nothing, though its question needs a body: whoever may look may ask
    audit_view  of a GET: a flow that makes a short reply in place of the whole, for the audit to
                compare before and after
    makes       the path of what it makes, with fields of its reply in braces; '': it changes what
                its own path names
    puts        a PUT that makes the thing that its path names where there is none: 201 then
    ends        the thing that its path names is no more when it is done, though its reply shows it
    idle        whether the flow's value says that nothing was changed: then the audit has no row
    action      its name in the audit, where `web.api.changes.action` does not find a good one
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
        """Raise ValueError where the path names other things than its record."""
        check_names(self.path, self.names)

    @property
    def changes(self) -> bool:
        """Return whether it changes anything, so that a token that may only read is refused."""
        return self.method != "GET" and not self.quiet

    def shown(self, value: V, who: Who) -> BaseModel | None:
        """Return the reply for the flow's value, with what `who` may know of it; None where there
        is nothing to say."""
        return None if self.shape is None else open_to(self.shape(value), who)


def check_names(path: str, names: type[Names]) -> None:
    """Raise ValueError unless `names` has the fields that the path pattern has in braces, in the
    same order."""
    wanted, given = re.findall(r"\{(\w+)\}", path), [each.name for each in fields(names)]
    if wanted != given:
        raise ValueError(f"{path} has the names {wanted}, and {names.__name__} has {given}")


def named(path: str, values: Mapping[str, str]) -> Names:
    """Return the record of what the path pattern names, with those of `values` that belong to
    it."""
    wanted = re.findall(r"\{(\w+)\}", path)
    record = next(each for each in _RECORDS if [one.name for one in fields(each)] == wanted)
    return record(**{name: values[name] for name in wanted})


def open_to(reply: BaseModel, who: Who) -> BaseModel:
    """Return the reply without what `who` may not know of it."""
    return reply.for_others() if isinstance(reply, Reply) and not who.admin else reply


class MadeOf(Protocol[V_contra]):
    """A reply model that is made of such a value: its class, or a `Shaped`."""

    def of(self, value: V_contra, /) -> BaseModel:
        """Make the reply."""


@dataclass(frozen=True, slots=True)
class Shaped(Generic[V_contra, R]):
    """A reply model, and what makes a reply of a flow's value."""

    model: type[R]
    of: Callable[[V_contra], R]


@dataclass(frozen=True, slots=True)
class Worked(Generic[N_contra, B_contra, Q_contra, V_contra, R]):
    """A reply model, and what makes a reply of the question and a flow's value, slowly: in a
    thread."""

    model: type[R]
    work: Callable[[Call[N_contra, B_contra, Q_contra], V_contra], R]


@dataclass(frozen=True, slots=True)
class RouteMaker(Generic[N]):
    """A maker of routes whose paths name the same: see `route` and those after it."""

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
        """Return a route; see `Route`. Raises ValueError for a path that names something else.

        operation  the method and the path: "GET /nodes"
        reply      a model with a class method `of`; or a `Shaped`, or a `Worked`
        status     0: 204 without a reply, 201 where it makes something, else 200
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
    """Return the reply of a flow that makes the reply itself."""
    return Shaped(model, lambda value: value)


def nothing(value: T) -> Flow[T]:
    """Return a flow that asks the database nothing and returns `value`."""
    return lambda tx: value


def listed(
    item: MadeOf[T], about: str, name: str = "", *, kind: Any = Items
) -> Shaped[Sequence[T], Items[Any]]:
    """Return the reply for a list, whose items are replies of this kind.

    about  what the API's document says of the list
    name   of the list there; '': that of the items and 'List'
    kind   `Items` or `ListPage`
    """
    model: Any = getattr(item, "model", item)
    reply = _list_model(kind, model, about, name)
    more = [each for each in ("next", "total") if each in reply.model_fields]

    def shape(values: Sequence[T]) -> Items[Any]:
        part = {each: getattr(values, each, None) for each in more}
        made: Items[Any] = reply(items=[item.of(each) for each in values], **part)
        return made

    return Shaped(reply, shape)


def paged(item: MadeOf[T], about: str, name: str = "") -> Shaped[Sequence[T], Items[Any]]:
    """Return the reply for a part of a list; see `listed`."""
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
    """Turn a flow that returns a whole, short list into one that returns the page asked for.

    texts    the texts of an item that are searched for `q`
    default  the key that orders the list by default, among `keys`; unique
    keys     the keys by which the list can be ordered
    """
    return lambda tx: part_of(flow(tx), page, keys, default, keys[default.removeprefix("-")], texts)


def number(text: str) -> int:
    """Return the row id in a path; -1, which no row has, if the text is not a number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1


class RouteMap:
    """Finds routes by the first segment of their paths, their length, and the last segment; None
    stands for a name there."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_shape: dict[tuple[str, int, str | None], list[Route]] = {}
        for each in routes:
            parts = each.path.split("/")
            last = None if parts[-1].startswith("{") else parts[-1]
            self._by_shape.setdefault((parts[1], len(parts), last), []).append(each)

    def find(self, method: str, path: str) -> tuple[Route | None, dict[str, str], list[str]]:
        """Return the route for a request, the path's parameters, and the methods that the path has
        (none: no such path)."""
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
"""What has its group's name before its own. Of their paths the name may be one segment or two:
/images/debian, /images/physics/debian, and physics%2Fdebian, which `unquoted` has made the same."""


def unquoted_in(path: str) -> str:
    """Return the characters that stay as they are in names in a path of that kind: many a proxy
    refuses `%2F`."""
    return "/" if path.split("/")[1] in OWNED else ""


def matched(pattern: str, path: str) -> dict[str, str] | None:
    """Return the parameters of `path` (already unquoted by segment) under `pattern`, or None where
    it does not fit."""
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
