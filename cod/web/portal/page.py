"""Pages and forms' actions. Their tables are in the modules by noun; `web.portal` puts them
together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from pydantic import BaseModel

from cod.pool import Tx
from cod.web.api.resources import ROUTES
from cod.web.api.routes import ANYBODY, Call, Claims, N, Q, Route
from cod.web.portal.answers import Answer, PageRequest
from cod.web.portal.forms import Fields
from cod.web.portal.links import fill

PageCall = Call[N, BaseModel, Q]
"""A question for a page: what its path names and its query string."""


@dataclass(frozen=True, slots=True)
class Page(Generic[N, Q]):
    """One page.

    path      with {names} in braces, as in the API's table
    template  below web/templates
    load      the flow: what it returns of a question are the template's variables
    claims    the rights that a question wants
    query     the model of the query string; `part` is not in it
    nav       which entry of the navigation it belongs to: an entry's path in `web.portal.nav`
    public    to be seen without signing in
    shared    what it loads depends on who asks by their rights alone, and is read once for the live
              parts of all who watch it (`shared_loads`)
    own       the flow of what depends on the person beside their rights, read for each; None: there
              is nothing
    """

    path: str
    template: str
    load: Callable[[Tx, PageCall[N, Q]], Mapping[str, Any]]
    claims: Claims[N, BaseModel, Q] = ANYBODY
    query: type[Q] | None = None
    nav: str = ""
    public: bool = False
    shared: bool = False
    own: Callable[[Tx, PageCall[N, Q]], Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """A form's POST: a route of the API, with the form's fields as its body or query.

    path     of the POST
    page     path of the page with the form, which is shown again where something is wrong with what
             was typed
    then     where the browser goes afterwards; from the question, with the names of the form's own
             path, and the route's reply
    message  the message that it finds there, from the same; '' for none
    convert  by field: what makes a value of the text, raising ValueError with a sentence (beside
             what the model's types make of it: numbers, check boxes, lists from lines)
    body     makes the whole body of the fields instead, where they do not correspond one to one
    names    the route's parameters from the path's and the fields, where the path does not say them
             all
    shows    template that shows the reply at once, instead of `then`: for secrets that are shown
             once
    again    for what only looks at what is typed: the path of the form that it belongs to. The page
             is shown again with that form as it was typed and the route's reply as `reply`; with
             `?part=` that part of it alone
    hides    fields that are not shown again where a private key was pasted into them
    edit     changes what was typed before it is looked at and shown again
    """

    path: str
    route: Route
    page: str
    then: Callable[[Call[Any, Any, Any], Any], str]
    message: Callable[[Call[Any, Any, Any], Any], str] = lambda ask, reply: ""
    convert: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    body: Callable[[Fields], Any] | None = None
    names: Callable[[Mapping[str, str], Fields], Mapping[str, str]] = lambda names, fields: names
    shows: str = ""
    again: str = ""
    hides: tuple[str, ...] = ()
    edit: Callable[[Fields], Fields] = lambda fields: fields


@dataclass(frozen=True, slots=True)
class SessionAction:
    """A POST that is no route of the API: it makes, changes or ends a browser's session.

    opened  answers, from the portal, the question and the form's fields; what it refuses is shown
            at the form
    page    path of the page with the form
    public  for those who are not signed in, too
    get     by GET, with the query string's fields: for those who come from another site
    """

    path: str
    page: str
    opened: Callable[[Any, PageRequest, Fields], Awaitable[Answer]]
    public: bool = False
    get: bool = False


def api(operation: str) -> Route:
    """Return the API's route of that method and path pattern: 'GET /nodes'. Raises LookupError."""
    for each in ROUTES:
        if f"{each.method} {each.path}" == operation:
            return each
    raise LookupError(f"the API has no {operation}")


def to(path: str) -> Callable[[Call, Any], str]:
    """Return what leads to that page, whatever was asked; {names} are those of the question's
    path."""
    return lambda ask, reply: fill(path, ask.names.texts())


def act(
    path: str,
    asks: str,
    page: str,
    message: str | Callable[[Call[Any, Any, Any], Any], str] = "",
    *,
    then: Callable[[Call[Any, Any, Any], Any], str] | None = None,
    **more: Any,
) -> Action:
    """Return what a form of a page does, which is shown again afterwards unless `then` leads
    elsewhere.

    asks     the route: 'POST /match'; without a path, that of the same path
    message  may be a sentence, such as 'Volume {reply.name} is restored.'
    """
    method, _, route = asks.partition(" ")
    words = (
        (lambda ask, reply: message.format(ask=ask, reply=reply))
        if isinstance(message, str)
        else message
    )
    return Action(path, api(f"{method} {route or path}"), page, then or to(page), words, **more)
