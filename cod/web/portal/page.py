"""Pages and forms' actions. The modules by noun have tables of them, which `web.portal` puts
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
"""A checked request for a page, with the names in its path and its query string."""


@dataclass(frozen=True, slots=True)
class Page(Generic[N, Q]):
    """One page.

    path      the path, with {names} in braces, as in the API's table
    template  the template's name below web/templates
    load      the flow: it returns the template's variables
    claims    the rights that a request needs
    query     the model of the query string, without `part`
    nav       the entry of the navigation that the page belongs to, by the entry's path in
              `web.portal.nav`
    public    can be seen without signing in
    shared    `load` depends on the caller's rights, and on nothing else about the caller: for live
              parts it runs once for all who watch with the same rights (`shared_loads`)
    own       the flow that returns variables about the person beside their rights, which runs for
              each person; None: there are none
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

    path     the path of the POST
    page     the path of the page with the form, which is shown again if a field is wrong
    then     returns the address to go to afterwards, from the request with the names of the form's
             own path and from the route's reply
    message  returns the message to show there, from the same arguments; '' for none
    convert  by field: returns the value for a text, or raises ValueError with a sentence; other
             fields are converted by the types of the model (numbers, check boxes, lists from lines)
    body     returns the whole body from the fields instead, if fields and body do not correspond
             one to one
    names    returns the route's parameters from those of the path and from the fields, if the path
             does not have all of them
    shows    the template that shows the reply at once, instead of `then`: for secrets that are
             shown once
    again    for an action that only shows an effect: the path of the form that the typed text
             belongs to. The page is shown again with that form as it was typed, and with the
             route's reply as `reply`; with `?part=` only that part of the page
    hides    fields that are not shown again if a private key was pasted into them
    edit     returns changed fields, before they are checked and shown again
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

    opened  returns the answer, from the portal, the request and the form's fields; the form shows a
            refusal
    page    the path of the page with the form
    public  also for callers who are not signed in
    get     sent by GET, with the query string's fields: for browsers that come from another site
    """

    path: str
    page: str
    opened: Callable[[Any, PageRequest, Fields], Awaitable[Answer]]
    public: bool = False
    get: bool = False


def api(operation: str) -> Route:
    """Return the API's route with this method and path pattern: 'GET /nodes'. Raises
    LookupError."""
    for each in ROUTES:
        if f"{each.method} {each.path}" == operation:
            return each
    raise LookupError(f"the API has no {operation}")


def to(path: str) -> Callable[[Call, Any], str]:
    """Return a function that returns the address of that page after any action; {names} are those
    of the request's path."""
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
    """Return the action of a form on a page. The page is shown again afterwards unless `then` leads
    elsewhere.

    asks     the route: 'POST /match'; a method alone means the route with the same path
    message  may be a sentence, such as 'Volume {reply.name} is restored.'
    """
    method, _, route = asks.partition(" ")
    words = (
        (lambda ask, reply: message.format(ask=ask, reply=reply))
        if isinstance(message, str)
        else message
    )
    return Action(path, api(f"{method} {route or path}"), page, then or to(page), words, **more)
