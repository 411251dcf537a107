"""`PUT` of one thing by its document. It makes the thing if it does not exist, changes fields that
differ, and writes nothing if none does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from cod.flows.people import access
from cod.flows.people.access import RequiredRight
from cod.model import Effect, Result, Right
from cod.pool import Tx
from cod.web.api.models import faults_of
from cod.web.api.resources.documents.kinds import KINDS, DocumentKind
from cod.web.api.resources.documents.steps import (
    ACT_ROUTES,
    CheckedDocument,
    DocumentStep,
    read_document,
    refuse,
    things_of,
)
from cod.web.api.routes import Call, Named, Route, Shaped, named_route


class _Put(NamedTuple):
    """Value of the flow that shows the thing, and whether anything was changed."""

    value: Any
    changed: bool


def _by_acts(ask: Call) -> Sequence[RequiredRight]:
    """Return the rights of everybody who is signed in and may see the thing, if it exists, and may
    make or change it by its other routes."""
    return (RequiredRight(Right.ANY),)


def _document(kind: DocumentKind, ask: Call[Named, BaseModel]) -> CheckedDocument:
    """Return the request as a document. Runs in a thread. Raises `HttpProblem`."""
    own = {"kind": kind.name, "name": ask.names.name}
    given = ask.body.model_dump(exclude_unset=True)
    if given.get("name", own["name"]) != own["name"]:
        refuse({"name": "a PUT renames nothing: leave it out, or say the name in the path"})
    read = read_document(0, {**given, **own})
    if not isinstance(read, CheckedDocument):
        refuse(read)
        raise AssertionError(read)
    return read


def _put(ask: Call[Named, BaseModel], kind: DocumentKind, shown: Route, tx: Tx) -> Result[_Put]:
    """Make the thing agree with the document, and return it as the route `shown` shows it
    afterwards. Raises `Refused`, and `HttpProblem` for fields."""
    nothing: Any = None
    look = replace(ask, body=nothing, prepared=None)
    claims = shown.claims(look)
    document: CheckedDocument = ask.prepared
    # a caller who may not see the thing is treated as if it did not exist
    seen = all(access.allows(tx, ask.who, claim) for claim in claims)
    before = things_of(tx, kind, document.name).get(document.name) if seen else None
    step = document.step(before)
    secrets = {name: value for name, value in document.fields.items() if kind.secret(name, value)}
    # a caller without the right to change a secret must not learn that they guessed it
    asked = step or DocumentStep(kind, document.name, before, secrets, document)
    effects: list[Effect] = []
    for act in asked.acts if step or secrets else ():
        try:
            value = asked.flow(ask, act, rights_only=step is None)(tx)
        except ValidationError as error:
            refuse(faults_of(error))
            raise
        effects += value.effects if isinstance(value, Result) else ()
    differs = step and document.step(things_of(tx, kind, document.name).get(document.name))
    if differs:
        refuse({field: f"COD makes {kept!r} of it" for field, kept in differs.kept.items()})
    now = replace(look, who=access.current(tx, ask.who))  # the caller may own the new group
    value = access.guarded(tx, flow=shown.call(now), who=now.who, claims=claims, fresh=True)
    return Result(_Put(value, step is not None), tuple(effects))


def _route(path: str, kind: DocumentKind, makes: bool = True) -> Route[Any, Any, Any, Any]:
    shown, _, _ = ACT_ROUTES.find("GET", path)
    assert shown is not None
    assert shown.shape is not None
    assert shown.reply is not None
    shape = shown.shape
    made = "; it is made where there is none" if makes else ""
    return named_route(
        f"PUT {path}",
        _by_acts,
        f"Set the fields of a {kind.name}: those that are left out stay{made}",
        lambda a: partial(_put, a, kind, shown),
        reply=Shaped(shown.reply, lambda done: shape(done.value)),
        body=kind.fields,
        before=partial(_document, kind),
        idle=lambda done: not done.changed,
        dear=kind.name == "template",  # as POST /templates is
        puts=makes,
    )


PUTS: tuple[Route[Any, Any, Any, Any], ...] = (
    _route("/groups/{name}", KINDS["group"]),
    _route("/types/{name}", KINDS["type"], makes=False),
    _route("/shares/{name}", KINDS["share"], makes=False),
    _route("/blocks/{name}", KINDS["block"]),
    _route("/templates/{name}", KINDS["template"]),
    _route("/volumes/{name}", KINDS["volume"]),
    _route("/vclusters/{name}/vcm", KINDS["vcm"]),
)
