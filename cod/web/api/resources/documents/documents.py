"""The site's documents: a comparison of documents with the site, their application, and the site's
present state as documents.

The routes of the API that change one thing at a time carry documents out, all of them in one
transaction, or none. A comparison carries them out, too, and undoes that. So the comparison shows
exactly what an application would do, and everything that a flow would refuse.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from cod.flows import replies, site_documents
from cod.model import Effect, Refused, Result
from cod.pool import Tx
from cod.web.api.models import Body, OneOrSeveral, Paged, Reply, faults_of
from cod.web.api.resources.documents.kinds import KINDS, DocumentAct, DocumentKind, Things, Values
from cod.web.api.resources.documents.steps import (
    CheckedDocument,
    DocumentChange,
    DocumentStep,
    read_document,
    refuse,
    things_of,
)
from cod.web.api.routes import (
    ADMINS,
    Call,
    Names,
    Route,
    as_it_is,
    in_parts,
    paged,
    route,
)

MOST = 10_000  # documents in one request


class DocumentSet(Body):
    """Documents, each with its kind, its name and the fields of its kind. A field that is left out
    stays as it is. `prune`: delete things that an earlier application named and these documents do
    not."""

    documents: list[dict[str, Any]] = Field(max_length=MOST)
    prune: bool = False

    @model_validator(mode="after")
    def _some_to_keep(self) -> Self:
        if self.prune and not self.documents:
            raise ValueError("a prune without documents would delete all that was ever applied")
        return self


class DocumentApply(DocumentSet):
    """Documents to apply. `plan`: the plan of an earlier comparison; if the application would now
    do anything else, it does nothing."""

    plan: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None


class LeftThing(Reply):
    """A thing that an earlier application of documents named, and the present documents do not."""

    kind: str
    thing: str


class DocumentsReply(Reply):
    """Changes made by applying the documents, in their order. `left`: things that a prune would
    delete; `adopted`: number of things that are named for the first time, and need no change for
    that; `plan`: a digest of the changes, to which an application can be bound."""

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
class _Plan:
    """Steps in their order.

    left  things that an earlier application named and these documents do not, if they are not
          pruned
    new   things to be recorded as named by documents from now on
    """

    steps: tuple[DocumentStep, ...]
    left: frozenset[tuple[str, str]]
    new: frozenset[tuple[str, str]]

    @property
    def tag(self) -> str:
        """Return a digest of all that the plan does."""
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


def _read(ask: Call[Names, DocumentSet]) -> list[CheckedDocument]:
    """Return the documents, checked as far as possible without the database. Runs in a thread.
    Raises `HttpProblem` with the faults of all documents."""
    faults: dict[str, str] = {}
    found: dict[tuple[str, str], CheckedDocument] = {}
    for place, values in enumerate(ask.body.documents):
        read = read_document(place, values)
        if isinstance(read, CheckedDocument) and (read.kind.name, read.name) in found:
            read = {"name": f"another document is of {read.kind.name} {read.name}, too"}
        if isinstance(read, CheckedDocument):
            found[read.kind.name, read.name] = read
        else:
            faults |= {f"documents.{place}.{field}".rstrip("."): read[field] for field in read}
    refuse(faults)
    return list(found.values())


# ------------------------------------------------ planning, and carrying out


def _plan(tx: Tx, ask: Call[Names, DocumentSet]) -> _Plan:
    """Return the steps that make things agree with the documents."""
    documents: list[CheckedDocument] = ask.prepared
    managed = site_documents.managed(tx)
    named = {(each.kind.name, each.name) for each in documents}
    existing = {
        kind: things_of(tx, KINDS[kind])
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


def _deletions(
    existing: Mapping[str, Things], left: set[tuple[str, str]]
) -> Iterator[DocumentStep]:
    """Yield the steps that delete things, in the reverse order of their kinds. A group's members
    are deleted with the group."""
    for kind in reversed(KINDS.values()):
        for name in sorted(name for each, name in left if each == kind.name):
            if kind.name != "member" or ("group", name.partition("/")[0]) not in left:
                yield DocumentStep(kind, name, existing[kind.name][name], None)


def _check(ask: Call[Names, DocumentSet], tx: Tx) -> DocumentsReply:
    """Return the changes that applying the documents would make. Raises the same as `_apply`."""
    return site_documents.tried(tx, flow=partial(_carry_out, ask, _plan(tx, ask)))


def _apply(ask: Call[Names, DocumentApply], tx: Tx) -> Result[DocumentsReply]:
    """Make things agree with the documents. Raises `HttpProblem` with all refusals, and
    `replies.Changed` if the plan is not the one that was seen."""
    replies.one_at_a_time(tx)
    plan = _plan(tx, ask)
    if ask.body.plan not in (None, plan.tag):
        raise replies.Changed
    return Result(plan.reply) if plan.reply.idle else _carry_out(ask, plan, tx)


def _carry_out(ask: Call[Names, DocumentSet], plan: _Plan, tx: Tx) -> Result[DocumentsReply]:
    faults: dict[str, str] = {}
    effects: list[Effect] = []
    refused_steps: list[DocumentStep] = []
    for step, act in _acts(plan):
        if step in refused_steps:
            continue
        try:
            value = site_documents.attempt(tx, flow=step.flow(ask, act))
        except Refused as refused:
            faults[step.fault(refused.field)] = refused.sentence
            refused_steps.append(step)
        except ValidationError as error:
            found = faults_of(error)
            faults |= {step.fault(field.partition(".")[0]): found[field] for field in found}
            refused_steps.append(step)
        else:
            effects += value.effects if isinstance(value, Result) else ()
    refuse(faults)
    _agrees(tx, ask)
    named = {(each.kind.name, each.name) for each in ask.prepared}
    deletable = {(kind, name) for kind, name in named if KINDS[kind].deletes(name)}
    site_documents.manage(tx, named=deletable, pruned=ask.body.prune)
    return Result(plan.reply, tuple(dict.fromkeys(effects)))


def _acts(plan: _Plan) -> list[tuple[DocumentStep, DocumentAct]]:
    """Return the acts of all steps in their order."""
    found = []
    for number, step in enumerate(plan.steps):
        kind = len(KINDS) if step.changes is None else list(KINDS).index(step.kind.name)
        found += [(kind, not act.early, number, step, act) for act in step.acts]
    found.sort(key=lambda each: each[:3])  # the acts of one step stay in their order
    return [(step, act) for _, _, _, step, act in found]


def _agrees(tx: Tx, ask: Call[Names, DocumentSet]) -> None:
    """Refuse documents that still differ from the things after their application."""
    faults = {}
    for step in _plan(tx, ask).steps:
        for field, kept in step.kept.items():
            faults[step.fault(field)] = (
                f"COD makes {kept!r} of it: write that, and see that no other document says "
                "something else"
            )
    refuse(faults)


# ------------------------------------------------ what is there


def _documents(ask: Call[Names, BaseModel, DocumentQuery], tx: Tx) -> list[DocumentReply]:
    """Return things as documents. Raises `Refused`."""
    wanted, name = (ask.query.kind or "").split(","), ask.query.name
    found = [
        _document(kind, each, fields)
        for kind in KINDS.values()
        if kind.name in wanted or not ask.query.kind
        for each, fields in things_of(tx, kind, name).items()
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
            if field not in hidden and (value is not None or field not in kind.never_null)
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
)
