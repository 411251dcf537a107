"""A document of one thing, the step that makes the thing agree with the document, and the routes
that carry out the step. Each route requires its own rights, so that no rule is written twice."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from pydantic import ValidationError

from cod.flows.people import access
from cod.model import Refused
from cod.pool import Tx
from cod.web.api.models import Reply, faults_of
from cod.web.api.resources import groups, hardware, people, shares, software, vcms, volumes
from cod.web.api.resources.documents.kinds import KINDS, DocumentAct, DocumentKind, Things, Values
from cod.web.api.resources.network import switches
from cod.web.api.routes import Call, Flow, RouteMap
from cod.web.http.errors import HttpProblem

ACT_ROUTES = RouteMap(
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


class FieldChange(Reply):
    """A field that differs, with its values in the form of documents. Secrets are digests."""

    field: str
    before: Any
    after: Any


class DocumentChange(Reply):
    """Change of one thing; a deleted thing has no fields."""

    kind: str
    thing: str
    action: Literal["create", "change", "delete"]
    fields: list[FieldChange]


@dataclass(frozen=True, slots=True)
class CheckedDocument:
    """A document that was checked. `place` is its number in the request; `prepared` is what its
    route's `before` would have read."""

    place: int
    kind: DocumentKind
    name: str
    fields: Values
    prepared: Any = None

    def step(self, before: Values | None) -> DocumentStep | None:
        """Return the step that makes the thing agree with the document; None if it agrees already.
        `before` has the thing's values; None: it does not exist."""
        changes = {
            field: value
            for field, value in self.fields.items()
            if before is None or before[field] != value
        }
        new = before is None
        return DocumentStep(self.kind, self.name, before, changes, self) if new or changes else None


@dataclass(frozen=True, slots=True)
class DocumentStep:
    """A step for one thing. `before` has its present values; None: it does not exist. `changes` has
    the fields that differ; None: the thing is to be deleted."""

    kind: DocumentKind
    name: str
    before: Values | None
    changes: Values | None
    document: CheckedDocument | None = None

    @property
    def acts(self) -> list[DocumentAct]:
        """Return the requests to routes that carry the step out, in their order."""
        return self.kind.acts(self.name, self.before, self.changes)

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
        """Return all that the step does, and the values that it replaces, for a digest."""
        before = self.before
        if before is not None and self.changes is not None:
            before = {field: before[field] for field in self.changes}
        return self.kind.name, self.name, before, self.changes

    @property
    def kept(self) -> Mapping[str, Any]:
        """Return the present value of each field that differs, as a comparison shows it."""
        before = self.before or {}
        return {
            field: self.kind.shown(field, before[field]) if field in before else None
            for field in self.changes or {"name": None}
        }

    def fault(self, field: str) -> str:
        """Return the name under which a fault of the step's field is reported: its place in the
        request, or the thing itself if no document is about it."""
        if self.document is None:
            return f"{self.kind.name} {self.name}"
        place = f"documents.{self.document.place}"
        return f"{place}.{field}" if field in ("name", *self.kind.known) else place

    def flow(self, ask: Call, act: DocumentAct, *, rights_only: bool = False) -> Flow[Any]:
        """Return the flow of one of the step's requests, behind the rights that its route requires.
        With `rights_only` the flow only checks the rights. Raises ValidationError."""
        method, path = act.operation.split(" ")
        found, _, _ = ACT_ROUTES.find(method, path)
        assert found is not None
        nothing: Any = None
        asked = replace(
            ask,
            names=act.names,
            body=nothing if found.body is None else found.body.model_validate(act.body),
            query=nothing,
            prepared=self.document and self.document.prepared,
        )

        def flow(tx: Tx) -> Any:
            if act.refusal is not None:
                raise act.refusal
            return None if rights_only else found.call(asked)(tx)

        return partial(access.guarded, flow=flow, who=ask.who, claims=found.claims(asked))


def read_document(place: int, values: Mapping[str, Any]) -> CheckedDocument | dict[str, str]:
    """Return the checked document, or the faults of its fields by field."""
    given, faults = dict(values), dict[str, str]()
    kind = KINDS.get(str(given.pop("kind", "")))
    if kind is None:
        return {"kind": f"should be {', '.join(KINDS)}"}
    name = given.pop("name", None)
    if not isinstance(name, str) or not 0 < len(name) <= 127 or not name.isprintable():
        return {"name": "should be a text of at most 127 characters"}
    if not re.fullmatch(kind.pattern, name):
        return {"name": f"a {kind.name} is named {kind.form}"}
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
    try:
        model = kind.fields.model_validate(given)
    except ValidationError as error:
        return faults | faults_of(error)
    if faults:
        return faults
    fields = _plain(
        {
            field: value
            for field in given
            if (value := getattr(model, field)) is not None or field not in kind.never_null
        }
    )
    prepared = None
    if kind.name == "template" and fields:
        try:
            prepared = software.read_template(fields["document"])
        except Refused as refused:
            return {"document": refused.sentence}
        if prepared.name != name.rpartition("/")[2]:
            return {"name": f"the template in the document is called {prepared.name!r}"}
    return CheckedDocument(place, kind, name, fields, prepared)


def _plain(values: Values) -> dict[str, Any]:
    """Return the values in JSON's form. Lists, which are sets in all kinds, are sorted."""
    return {
        field: sorted(map(str, value)) if isinstance(value, list | tuple) else value
        for field, value in values.items()
    }


def refuse(faults: Mapping[str, str]) -> None:
    """Raise `HttpProblem` with the faults of fields, if there are any."""
    if faults:
        first = next(iter(faults))
        raise HttpProblem(422, "invalid", faults[first], first, dict(faults))


def things_of(tx: Tx, kind: DocumentKind, name: str | None = None) -> Things:
    """Return the fields of all things of the kind in JSON's form, by name; with a `name`, only
    those of the thing of that name."""
    return {
        each: _plain(fields)
        for each, fields in kind.things(tx, name).items()
        if name in (None, each)
    }
