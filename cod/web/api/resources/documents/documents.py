"""The site's documents: what applying them would change, the applying, and what is there as
documents.

Documents are carried out by the routes of the API that change one thing at a time, in one
transaction: all of them, or none. Comparing carries them out, too, and undoes it: so what is shown
is what will be done, and everything that a flow refuses is said before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from cod.flows import replies, site_documents
from cod.flows.people import access
from cod.flows.people.access import RequiredRight
from cod.model import Effect, Refused, Result, Right
from cod.pool import Tx
from cod.web.api.models import Body, OneOrSeveral, Paged, Reply, faults_of
from cod.web.api.resources import (
    groups,
    hardware,
    people,
    shares,
    software,
    vcms,
    volumes,
)
from cod.web.api.resources.documents.kinds import KINDS, DocumentAct, DocumentKind, Things, Values
from cod.web.api.resources.network import switches
from cod.web.api.routes import (
    ADMINS,
    Call,
    Flow,
    Named,
    Names,
    Route,
    RouteMap,
    Shaped,
    as_it_is,
    in_parts,
    named_route,
    paged,
    route,
)
from cod.web.http.errors import HttpProblem

MOST = 10_000  # documents in one question
_ACTS = RouteMap(
    (
        *groups.GROUPS,
        *people.MEMBERS,
        *hardware.TYPES,
        *shares.SHARES,
        *hardware.BLOCKS,
        *software.TEMPLATES,
        *volumes.VOLUMES,
        *switches.SWITCHES,
        *vcms.VCMS,
    )
)


class DocumentSet(Body):
    """Documents, each with its kind, its name and the fields of its kind; fields that are left out
    stay as they are. `prune`: delete what an earlier application named and these documents do
    not."""

    documents: list[dict[str, Any]] = Field(max_length=MOST)
    prune: bool = False

    @model_validator(mode="after")
    def _some_to_keep(self) -> Self:
        if self.prune and not self.documents:
            raise ValueError("a prune without documents would delete all that was ever applied")
        return self


class DocumentApply(DocumentSet):
    """Documents to apply. `plan`: of the answer to a comparison; where something else would be done
    now, nothing is."""

    plan: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None


class FieldChange(Reply):
    """A field that differs, as documents have it. Secrets are digests."""

    field: str
    before: Any
    after: Any


class DocumentChange(Reply):
    """Change of one thing; a deleted thing has no fields."""

    kind: str
    thing: str
    action: Literal["create", "change", "delete"]
    fields: list[FieldChange]


class LeftThing(Reply):
    """A thing that an earlier application of documents named, and the present documents do not."""

    kind: str
    thing: str


class DocumentsReply(Reply):
    """Changes made by applying the documents, in the order in which they are made. `left`: what a
    prune would delete; `adopted`: things that are named for the first time, and need not be changed
    for it; `plan`: what applying may be bound to."""

    changes: list[DocumentChange]
    left: list[LeftThing]
    adopted: int
    plan: str

    @property
    def idle(self) -> bool:
        """Return whether there is nothing to do."""
        return not self.changes and not self.adopted


class DocumentQuery(Paged):
    """Selection of the things to write as documents."""

    sort: Literal["kind", "-kind"] = Field(
        default="kind", description="kind: in the order in which documents are applied"
    )

    kind: Annotated[str | None, OneOrSeveral(KINDS)] = Field(default=None, max_length=200)
    name: str | None = Field(default=None, max_length=127, description="of the thing, in full")


class DocumentReply(Reply):
    """A thing as a document. `hidden`: fields with secrets, which are left out."""

    kind: str
    name: str
    fields: dict[str, Any]
    hidden: list[str]


@dataclass(frozen=True, slots=True)
class _Document:
    """A document that was checked. `place`: its number in the question; `prepared`: what the route
    that makes the thing wants to have been read before."""

    place: int
    kind: DocumentKind
    name: str
    fields: Values
    prepared: Any = None

    def step(self, before: Values | None) -> _Step | None:
        """Return what makes the thing, which has the values `before` (None: it does not exist), as
        the document says; None: it is so already."""
        changes = {
            field: value
            for field, value in self.fields.items()
            if before is None or before[field] != value
        }
        new = before is None
        return _Step(self.kind, self.name, before, changes, self) if new or changes else None


@dataclass(frozen=True, slots=True)
class _Step:
    """Step for one thing. `before`: None: it does not exist; `changes`: the fields that differ;
    None: it is to be deleted."""

    kind: DocumentKind
    name: str
    before: Values | None
    changes: Values | None
    document: _Document | None = None

    @property
    def shown(self) -> DocumentChange:
        """Return the step as people see it."""
        before, changes = self.before or {}, self.changes or {}
        fields = [
            FieldChange(
                field=field,
                before=self.kind.shown(field, before[field]) if field in before else None,
                after=self.kind.shown(field, value),
            )
            for field, value in changes.items()
        ]
        return DocumentChange(
            kind=self.kind.name,
            thing=self.name,
            action=(
                "create" if self.before is None else "delete" if self.changes is None else "change"
            ),
            fields=fields,
        )

    @property
    def content(self) -> tuple[Any, ...]:
        """Return all that is to be done, and what it was seen to be before."""
        before = self.before
        if before is not None and self.changes is not None:
            before = {field: before[field] for field in self.changes}
        return self.kind.name, self.name, before, self.changes

    @property
    def kept(self) -> Mapping[str, Any]:
        """Return what there is, as people see it, in place of each field that differs."""
        before = self.before or {}
        return {
            field: self.kind.shown(field, before[field]) if field in before else None
            for field in self.changes or {"name": None}
        }

    def fault(self, field: str) -> str:
        """Return where in the question a fault of the step is."""
        if self.document is None:
            return f"{self.kind.name} {self.name}"
        place = f"documents.{self.document.place}"
        return f"{place}.{field}" if field in ("name", *self.kind.known) else place


@dataclass(frozen=True, slots=True)
class _Plan:
    """Steps in their order, and what of the documents and of what was named before is to be put
    down."""

    steps: tuple[_Step, ...]
    left: frozenset[tuple[str, str]]
    new: frozenset[tuple[str, str]]

    @property
    def tag(self) -> str:
        """Return a digest of all that is to be done."""
        content = json.dumps(
            [[each.content for each in self.steps], sorted(self.new)], sort_keys=True
        )
        return hashlib.sha256(content.encode(errors="replace")).hexdigest()

    @property
    def reply(self) -> DocumentsReply:
        """Return the plan as people see it."""
        made = {(each.kind.name, each.name) for each in self.steps}
        return DocumentsReply(
            changes=[each.shown for each in self.steps],
            left=[LeftThing(kind=kind, thing=name) for kind, name in sorted(self.left)],
            adopted=len(self.new - made),
            plan=self.tag,
        )


# ------------------------------------------------ reading documents


def _read(ask: Call[Names, DocumentSet]) -> list[_Document]:
    """Return the documents, checked as far as that can be done without the database. Runs in a
    thread. Raises `HttpProblem` with all their faults."""
    faults: dict[str, str] = {}
    found: dict[tuple[str, str], _Document] = {}
    for place, values in enumerate(ask.body.documents):
        read = _checked(place, values)
        if isinstance(read, _Document) and (read.kind.name, read.name) in found:
            read = {"name": f"another document is of {read.kind.name} {read.name}, too"}
        if isinstance(read, _Document):
            found[read.kind.name, read.name] = read
        else:
            faults |= {f"documents.{place}.{field}".rstrip("."): read[field] for field in read}
    _refuse(faults)
    return list(found.values())


def _checked(place: int, values: Mapping[str, Any]) -> _Document | dict[str, str]:
    """Return the document, or what is wrong with its fields."""
    given, faults = dict(values), dict[str, str]()
    kind = KINDS.get(str(given.pop("kind", "")))
    if kind is None:
        return {"kind": f"should be {', '.join(KINDS)}"}
    name = given.pop("name", None)
    if not isinstance(name, str) or not 0 < len(name) <= 127 or not name.isprintable():
        return {"name": "should be a text of at most 127 characters"}
    for field, value in list(given.items()):
        if field not in kind.known:
            faults[field] = f"is no field of a {kind.name}, which has {', '.join(kind.known)}"
            del given[field]
            continue
        try:
            given[field] = kind.read(field, value)
        except ValueError as error:
            faults[field] = str(error)
            del given[field]
    if not given and kind.name != "template":
        return faults or _Document(place, kind, name, {})
    try:
        model = kind.fields.model_validate(given)
    except ValidationError as error:
        return faults | faults_of(error)
    if faults:
        return faults
    fields = _plain({field: getattr(model, field) for field in given})
    prepared = None
    if kind.name == "template":
        try:
            prepared = software.read_template(fields["document"])
        except Refused as refused:
            return {"document": refused.sentence}
        if prepared.name != name.rpartition("/")[2]:
            return {"name": f"the template in the document is called {prepared.name!r}"}
    return _Document(place, kind, name, fields, prepared)


def _plain(values: Values) -> dict[str, Any]:
    """Return values as JSON has them; lists, which are sets in all kinds, in order."""
    return {
        field: sorted(map(str, value)) if isinstance(value, list | tuple) else value
        for field, value in values.items()
    }


def _refuse(faults: Mapping[str, str]) -> None:
    if faults:
        first = next(iter(faults))
        raise HttpProblem(422, "invalid", faults[first], first, dict(faults))


# ------------------------------------------------ planning, and carrying out


def _existing(tx: Tx, ask: Call, kind: DocumentKind) -> Things:
    return {name: _plain(fields) for name, fields in kind.things(tx, ask).items()}


def _plan(tx: Tx, ask: Call[Names, DocumentSet]) -> _Plan:
    """Return the steps that make things as the documents say."""
    documents: list[_Document] = ask.prepared
    managed = site_documents.managed(tx)
    named = {(each.kind.name, each.name) for each in documents}
    existing = {
        kind: _existing(tx, ask, KINDS[kind])
        for kind in KINDS.keys() & {kind for kind, _ in named | managed}
    }
    left = {
        (kind, name)
        for kind, name in managed - named
        if name in existing.get(kind, {}) and KINDS[kind].deletes(name)
    }
    steps = []
    for document in sorted(documents, key=lambda each: list(KINDS).index(each.kind.name)):
        step = document.step(existing[document.kind.name].get(document.name))
        steps += [step] if step else []
    if ask.body.prune:
        steps += _deletions(existing, left)
    new = frozenset(one for one in named - managed if KINDS[one[0]].deletes(one[1]))
    return _Plan(tuple(steps), frozenset(() if ask.body.prune else left), new)


def _deletions(existing: Mapping[str, Things], left: set[tuple[str, str]]) -> Iterator[_Step]:
    """Yield the steps that delete things, in the order of their kinds upside down. A group's
    members go with the group."""
    for kind in reversed(KINDS.values()):
        for name in sorted(name for each, name in left if each == kind.name):
            if kind.name != "member" or ("group", name.partition("/")[0]) not in left:
                yield _Step(kind, name, existing[kind.name][name], None)


def _check(ask: Call[Names, DocumentSet], tx: Tx) -> DocumentsReply:
    """Return the changes that applying the documents would make. Raises the same as `_apply`."""
    return site_documents.tried(tx, flow=partial(_carry_out, ask, _plan(tx, ask)))


def _apply(ask: Call[Names, DocumentApply], tx: Tx) -> Result[DocumentsReply]:
    """Make things as the documents say. Raises `HttpProblem` with all that is refused, and
    `replies.Changed` where the plan is not what was seen."""
    plan = _plan(tx, ask)
    wanted = ask.body.plan or plan.tag
    if plan.reply.idle and wanted == plan.tag:
        return Result(plan.reply)
    return replies.unchanged(
        tx,
        flow=lambda tx: _carry_out(ask, _plan(tx, ask), tx),
        current=lambda tx: _plan(tx, ask).tag,
        wanted=(wanted,),
        now=ask.now,
    )


def _carry_out(ask: Call[Names, DocumentSet], plan: _Plan, tx: Tx) -> Result[DocumentsReply]:
    faults: dict[str, str] = {}
    effects: list[Effect] = []
    refused_steps: list[_Step] = []
    for step, act in _acts(plan, faults):
        if step in refused_steps:
            continue
        prepared = step.document and step.document.prepared
        try:
            value = site_documents.attempt(tx, flow=_asked(ask, prepared, act))
        except Refused as refused:
            faults[step.fault(refused.field)] = refused.sentence
            refused_steps.append(step)
        except ValidationError as error:
            found = faults_of(error)
            faults |= {step.fault(field.partition(".")[0]): found[field] for field in found}
            refused_steps.append(step)
        else:
            effects += value.effects if isinstance(value, Result) else ()
    _refuse(faults)
    _agrees(tx, ask)
    named = {(each.kind.name, each.name) for each in ask.prepared}
    deletable = {(kind, name) for kind, name in named if KINDS[kind].deletes(name)}
    site_documents.manage(tx, named=deletable, pruned=ask.body.prune)
    return Result(plan.reply, tuple(dict.fromkeys(effects)))


def _acts(plan: _Plan, faults: dict[str, str]) -> list[tuple[_Step, DocumentAct]]:
    """Return the acts of all steps in their order; `faults` gets what no act can do."""
    found = []
    for number, step in enumerate(plan.steps):
        try:
            acts = step.kind.acts(step.name, step.before, step.changes)
        except Refused as refused:
            faults[step.fault(refused.field)] = refused.sentence
            continue
        kind = len(KINDS) if step.changes is None else list(KINDS).index(step.kind.name)
        found += [(kind, not act.early, number, step, act) for act in acts]
    found.sort(key=lambda each: each[:3])  # of one step acts stay in their order
    return [(step, act) for _, _, _, step, act in found]


def _asked(ask: Call, prepared: Any, act: DocumentAct) -> Flow[Any]:
    """Return the flow of an act, behind the rights that its route wants. Raises
    ValidationError."""
    method, path = act.operation.split(" ")
    found, _, _ = _ACTS.find(method, path)
    assert found is not None
    nothing: Any = None
    asked = replace(
        ask,
        names=act.names,
        body=nothing if found.body is None else found.body.model_validate(act.body),
        query=nothing,
        prepared=prepared,
    )
    return partial(access.guarded, flow=found.call(asked), who=ask.who, claims=found.claims(asked))


def _agrees(tx: Tx, ask: Call[Names, DocumentSet]) -> None:
    """Refuse documents that would differ from what is there again, once they are applied."""
    faults = {}
    for step in _plan(tx, ask).steps:
        for field, kept in step.kept.items():
            faults[step.fault(field)] = (
                f"COD makes {kept!r} of it: write that, and see that no other document says "
                "something else"
            )
    _refuse(faults)


# ------------------------------------------------ one thing


class _Put(NamedTuple):
    """Value of the flow that shows the thing, and whether anything was changed."""

    value: Any
    changed: bool


def _by_acts(ask: Call) -> Sequence[RequiredRight]:
    """Return the rights of everybody who is signed in and may see the thing, if it is there, and
    make or change it by its other routes."""
    return (RequiredRight(Right.ANY),)


def _one(kind: DocumentKind, ask: Call[Named, BaseModel]) -> _Document:
    """Return the question as a document. Runs in a thread. Raises `HttpProblem`."""
    own = {"kind": kind.name, "name": ask.names.name}
    given = ask.body.model_dump(exclude_unset=True)
    if given.get("name", own["name"]) != own["name"]:
        _refuse({"name": "a PUT renames nothing: leave it out, or say the name in the path"})
    read = _checked(0, {**given, **own})
    if not isinstance(read, _Document):
        _refuse(read)
        raise AssertionError(read)
    return read


def _put(ask: Call[Named, BaseModel], kind: DocumentKind, shown: Route, tx: Tx) -> Result[_Put]:
    """Make the thing as the document says, by the acts that `_carry_out` has, and return what
    `shown` shows of it then. Raises `Refused`, and `HttpProblem` for fields."""
    nothing: Any = None
    look = replace(ask, body=nothing, prepared=None)
    claims = shown.claims(look)
    document: _Document = ask.prepared
    # who may not see the thing is refused, or not, as one who would make it
    seen = all(access.allows(tx, ask.who, claim) for claim in claims)
    step = document.step(_existing(tx, ask, kind).get(document.name) if seen else None)
    effects: list[Effect] = []
    for act in kind.acts(step.name, step.before, step.changes) if step else ():
        try:
            value = _asked(ask, document.prepared, act)(tx)
        except ValidationError as error:
            _refuse(faults_of(error))
            raise
        effects += value.effects if isinstance(value, Result) else ()
    differs = step and document.step(_existing(tx, ask, kind).get(document.name))
    if differs:
        _refuse({field: f"COD makes {kept!r} of it" for field, kept in differs.kept.items()})
    value = access.guarded(tx, flow=shown.call(look), who=ask.who, claims=claims)
    return Result(_Put(value, step is not None), tuple(effects))


def _put_route(path: str, kind: DocumentKind) -> Route[Any, Any, Any, Any]:
    shown, _, _ = _ACTS.find("GET", path)
    assert shown is not None
    assert shown.shape is not None
    assert shown.reply is not None
    shape = shown.shape
    made = "" if kind.name in ("type", "share") else "; it is made where there is none"
    return named_route(
        f"PUT {path}",
        _by_acts,
        f"Set the fields of a {kind.name}: those that are left out stay{made}",
        lambda a: partial(_put, a, kind, shown),
        reply=Shaped(shown.reply, lambda done: shape(done.value)),
        body=kind.fields,
        before=partial(_one, kind),
        idle=lambda done: not done.changed,
        dear=kind.name == "template",  # as POST /templates is
    )


# ------------------------------------------------ what is there


def _documents(ask: Call[Names, BaseModel, DocumentQuery], tx: Tx) -> list[DocumentReply]:
    """Return things as documents. Raises `Refused`."""
    wanted, name = (ask.query.kind or "").split(","), ask.query.name
    found = [
        _document(kind, each, fields)
        for kind in KINDS.values()
        if kind.name in wanted or not ask.query.kind
        for each, fields in _existing(tx, ask, kind).items()
        if name in (None, each)
    ]
    if name is not None and not found:
        raise Refused("not_found", f"there is no {ask.query.kind or 'thing'} {name!r}", "name")
    return found


def _document(kind: DocumentKind, name: str, fields: Values) -> DocumentReply:
    hidden = [field for field, value in fields.items() if kind.secret(field, value)]
    return DocumentReply(
        kind=kind.name,
        name=name,
        fields={
            field: kind.written(field, value)
            for field, value in fields.items()
            if field not in hidden
        },
        hidden=hidden,
    )


DOCUMENTS: tuple[Route[Any, Any, Any, Any], ...] = (
    route(
        "GET /documents",
        ADMINS,
        "Show the site's configuration as documents; secrets are left out",
        lambda a: in_parts(
            partial(_documents, a),
            a.query.page,
            lambda one: (one.name,),
            "kind",
            kind=lambda one: f"{list(KINDS).index(one.kind)} {one.name}",
        ),
        reply=paged(as_it_is(DocumentReply), "Things as documents."),
        query=DocumentQuery,
    ),
    route(
        "POST /documents/check",
        ADMINS,
        "Show what applying documents would change; nothing is changed",
        lambda a: partial(_check, a),
        reply=as_it_is(DocumentsReply),
        body=DocumentSet,
        before=_read,
        quiet=True,
    ),
    route(
        "POST /documents/apply",
        ADMINS,
        "Make the site as documents say: all of it, or nothing",
        lambda a: partial(_apply, a),
        reply=as_it_is(DocumentsReply),
        body=DocumentApply,
        before=_read,
        idle=lambda value: value.idle,
        action="documents apply",
    ),
    *(
        _put_route(path, KINDS[kind])
        for kind, path in (
            ("group", "/groups/{name}"),
            ("type", "/types/{name}"),
            ("share", "/shares/{name}"),
            ("block", "/blocks/{name}"),
            ("template", "/templates/{name}"),
            ("volume", "/volumes/{name}"),
            ("vcm", "/vclusters/{name}/vcm"),
        )
    ),
)
