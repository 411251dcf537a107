"""Kinds of the site's documents: how the things of each kind are read from the database, and which
routes of the API make, change and delete one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel, Field, field_validator

from cod import quantity
from cod.choices import Role, SingleRight
from cod.filters.ranges import expanded
from cod.flows.images import templates
from cod.flows.nodes import blocks, switch_ports, types
from cod.flows.people import groups, people
from cod.flows.scheduler import shares
from cod.flows.vcms import vcms
from cod.flows.volumes import volumes
from cod.model import SITE, FieldKind, NfsSecurity, Refused
from cod.pool import Tx
from cod.web.api.models import Chosen, DnsLabel, Patch
from cod.web.api.resources.groups import GroupPatch
from cod.web.api.resources.hardware import TypePatch
from cod.web.api.resources.shares import SharePatch, Shares
from cod.web.api.resources.vcms import VcmEnrol
from cod.web.api.resources.volumes import Bytes
from cod.web.api.routes import Named, NamedMember, Names

Values = Mapping[str, Any]
Things = dict[str, dict[str, Any]]
MOST_NODES = 10_000  # nodes of one block


class GroupFields(GroupPatch):
    """A group: a `PUT` without a field makes one with the defaults."""

    may_be_empty = True


class TypeFields(TypePatch):
    """A node type's fields in its documents."""

    may_be_empty = True


class ShareFields(SharePatch):
    """A group's share: its fields in documents."""

    may_be_empty = True


class MemberFields(Patch):
    """A user's role in a group, the single rights in addition to the role, and the user's shares in
    the group."""

    null_stays = True
    may_be_empty = True

    role: Chosen[Role] | None = None
    rights: list[Chosen[SingleRight]] | None = Field(default=None, max_length=len(SingleRight))
    shares: Shares | None = None


class BlockFields(Patch):
    """All nodes of a block."""

    may_be_empty = True

    nodes: list[DnsLabel] = Field(default=[], max_length=MOST_NODES)

    @field_validator("nodes", mode="before")
    @classmethod
    def _ranges(cls, nodes: Any) -> Any:
        """Return the names with ranges replaced by the names that they stand for."""
        if not isinstance(nodes, list):
            return nodes
        found: list[Any] = []
        for each in nodes:
            if len(found) > MOST_NODES:
                break  # too many already: the check of the length will refuse them
            is_range = isinstance(each, str) and "[" in each
            found += expanded(each, MOST_NODES) if is_range else [each]
        return found


class TemplateFields(Patch):
    """A template's XML, which a new template needs."""

    may_be_empty = True

    document: str | None = Field(default=None, min_length=1, max_length=2**18)


class VolumeFields(Patch):
    """Size of a volume, its protection by NFS, and the file server on which it is made."""

    null_stays = True
    may_be_empty = True

    size: Bytes | None = Field(default=None, json_schema_extra={"x-kind": FieldKind.SIZE})
    fileserver: str | None = Field(default=None, max_length=63)
    sec: NfsSecurity | None = None


class PortFields(Patch):
    """The switch port of the NIC that a node boots from, entered by hand."""

    null_stays = True
    may_be_empty = True

    switch: str | None = Field(default=None, min_length=1, max_length=63)
    port: str | None = Field(default=None, min_length=1, max_length=switch_ports.LONGEST)


class VcmFields(VcmEnrol, Patch):
    """The VCM that speaks for a vcluster."""

    null_stays = True
    may_be_null = frozenset({"address"})
    may_be_empty = True


@dataclass(frozen=True, slots=True)
class DocumentAct:
    """A request to a route of the API.

    early    comes before those requests for other documents of its kind that are not early
    refusal  raised instead of the request, if the caller has the rights that the route requires
    """

    operation: str
    names: Names
    body: dict[str, Any] | None = None
    early: bool = False
    refusal: Refused | None = None


@dataclass(frozen=True)
class DocumentKind:
    """A kind of documents.

    fields   the model of a document's fields, without its kind and its name
    things   returns the fields of all things of the kind, by name; if a name is given, those of
             other things may be left out
    acts     returns the requests that change a thing, from its name, its present values (None: it
             does not exist) and the values that differ (None: it is to be deleted)
    secret   returns whether a field's value is, or contains, a secret
    deletes  returns whether a prune may delete the thing of that name
    pattern  regular expression of the things' full names; `form` describes them to people
    """

    name: str
    fields: type[Patch]
    things: Callable[[Tx, str | None], Things]
    acts: Callable[[str, Values | None, Values | None], list[DocumentAct]]
    secret: Callable[[str, Any], bool] = lambda field, value: False
    deletes: Callable[[str], bool] = lambda name: True
    pattern: str = ".+"
    form: str = ""

    @cached_property
    def known(self) -> list[str]:
        """Return the names of the fields."""
        return [name for name in self.fields.model_fields if name != "name"]

    @cached_property
    def never_null(self) -> frozenset[str]:
        """Return the fields that cannot be null in a document."""
        return frozenset(self.known) - self.fields.may_be_null

    def read(self, field: str, value: Any) -> Any:
        """Return a document's value in the API's form: lengths of time and sizes may be texts in a
        document. Raises ValueError."""
        kind = self._measures(field)
        if isinstance(value, str) and kind is not None:
            return (
                quantity.read_span(value) if kind is FieldKind.SPAN else quantity.read_size(value)
            )
        return value

    def written(self, field: str, value: Any) -> Any:
        """Return a value in the form that documents have."""
        kind = self._measures(field)
        if value is None or kind is None:
            return value
        text = quantity.exact_span if kind is FieldKind.SPAN else quantity.exact_size
        return text(value) if self.read(field, text(value)) == value else value

    def shown(self, field: str, value: Any) -> Any:
        """Return a value as a comparison shows it, with a digest in place of a secret."""
        if self.secret(field, value):
            digest = hashlib.blake2b(str(value).encode(errors="replace"), digest_size=4)
            return f"secret, digest {digest.hexdigest()}"
        return self.written(field, value)

    def _measures(self, field: str) -> FieldKind | None:
        extra = self.fields.model_fields[field].json_schema_extra
        kind = extra.get("x-kind") if isinstance(extra, dict) else None
        return FieldKind(str(kind)) if kind in (FieldKind.SPAN, FieldKind.SIZE) else None


def _of(thing: object, fields: type[BaseModel]) -> dict[str, Any]:
    """Return the thing's values of the model's fields, without its name."""
    return {name: getattr(thing, name) for name in fields.model_fields if name != "name"}


def _group(name: str, before: Values | None, changes: Values | None) -> list[DocumentAct]:
    if changes is None:
        return [DocumentAct("DELETE /groups/{name}", Named(name))]
    if before is None:
        return [DocumentAct("POST /groups", Names(), {"name": name, **changes})]
    return [DocumentAct("PATCH /groups/{name}", Named(name), {**changes})]


def _member(name: str, before: Values | None, changes: Values | None) -> list[DocumentAct]:
    group, _, user = name.partition("/")
    names = NamedMember(group, user)
    if changes is None:
        return [DocumentAct("DELETE /groups/{name}/members/{user}", names)]
    # owners are added early, so that a group never loses its last one
    owns = changes.get("role") == Role.OWNER
    return [DocumentAct("PUT /groups/{name}/members/{user}", names, {**changes}, early=owns)]


def _share(name: str, before: Values | None, changes: Values | None) -> list[DocumentAct]:
    if not changes:  # shares are never created: the route refuses if there is none
        return [DocumentAct("GET /shares/{name}", Named(name))]
    body = {**changes}
    # a guarantee must be free before another group gets it, and a group with a parent can be no
    # parent
    gives = before is not None and _sure({**before, **body}) < _sure(before)
    early = gives or body.get("parent", "") is None
    return [DocumentAct("PATCH /shares/{name}", Named(name), body, early=early)]


def _sure(share: Values) -> int:
    """Return how many nodes a group is guaranteed."""
    return int(share["guarantee"] + sum(share["type_guarantees"].values()))


def _type(name: str, before: Values | None, changes: Values | None) -> list[DocumentAct]:
    operation = "PATCH /types/{name}" if changes else "GET /types/{name}"  # as with shares
    return [DocumentAct(operation, Named(name), {**(changes or {})})]


def _block(name: str, before: Values | None, changes: Values | None) -> list[DocumentAct]:
    was = set(before["nodes"] if before else ())
    wanted = set() if changes is None else set(changes.get("nodes", was))
    acts = [] if before else [DocumentAct("POST /blocks", Names(), {"name": name})]
    if more := sorted(wanted - was):
        acts.append(DocumentAct("POST /blocks/{name}/add", Named(name), {"nodes": more}))
    if gone := sorted(was - wanted):  # early: another block may be given them
        acts.append(
            DocumentAct("POST /blocks/{name}/remove", Named(name), {"nodes": gone}, early=True)
        )
    return (
        acts if changes is not None else [*acts, DocumentAct("DELETE /blocks/{name}", Named(name))]
    )


def _template(name: str, before: Values | None, changes: Values | None) -> list[DocumentAct]:
    if changes is None:
        return [DocumentAct("DELETE /templates/{name}", Named(name))]
    body = {**changes, "group": name.rpartition("/")[0]}
    return [DocumentAct("POST /templates", Names(), body)]


def _secret_template(field: str, document: Any) -> bool:
    try:
        return bool(templates.read(document).secret)
    except Refused:  # the template has an older grammar, and may contain a secret
        return True


def _volume(name: str, before: Values | None, changes: Values | None) -> list[DocumentAct]:
    if changes is None:
        return [DocumentAct("DELETE /volumes/{name}", Named(name))]
    if before is None:
        body = {"name": name, "group": name.rpartition("/")[0], **changes}
        return [DocumentAct("POST /volumes", Names(), body)]
    body = {field: value for field, value in changes.items() if field != "fileserver"}
    moved = f"volume {name} is on file server {before['fileserver']}, and stays there"
    refusal = Refused("conflict", moved, "fileserver") if body != changes else None
    return [DocumentAct("PATCH /volumes/{name}", Named(name), body, refusal=refusal)]


def _port(name: str, before: Values | None, changes: Values | None) -> list[DocumentAct]:
    if changes is None:
        return [DocumentAct("DELETE /nodes/{name}/port", Named(name))]
    return [DocumentAct("PUT /nodes/{name}/port", Named(name), {**(before or {}), **changes})]


def _vcm(name: str, before: Values | None, changes: Values | None) -> list[DocumentAct]:
    if changes is None:
        return [DocumentAct("DELETE /vclusters/{name}/vcm", Named(name))]
    body = {**(before or {}), **changes}
    certified = not body.get("inside") and not body.get("plain")
    shown_once = (
        "should be true, or `plain`: the key of a VCM outside of its vcluster is shown once, to "
        "the person who enrols it by itself"
    )
    refusal = Refused("invalid", shown_once, "inside") if certified else None
    return [DocumentAct("POST /vclusters/{name}/vcm", Named(name), body, refusal=refusal)]


def _vcms(tx: Tx, name: str | None) -> Things:
    return {
        each.vcluster: {
            "address": each.vcm.address or None,
            "plain": not each.vcm.serial and each.vcm.head is None,
            "inside": each.vcm.head is not None,
            "head": each.vcm.head,
        }
        for each in vcms.every(tx, vcluster=name)
    }


KINDS = {
    kind.name: kind
    for kind in (
        DocumentKind(
            "group",
            GroupFields,
            lambda tx, name: {
                each.name: _of(each, GroupFields) for each in groups.every(tx, name=name)
            },
            _group,
            secret=lambda field, value: field == "webhook" and bool(value),
            deletes=lambda name: name != SITE,
        ),
        DocumentKind(
            "member",
            MemberFields,
            lambda tx, name: {
                f"{each.group}/{each.user}": _of(each, MemberFields)
                for each in people.memberships(tx)
            },
            _member,
            pattern="[^/]*/.+",
            form="GROUP/USER, such as physics/ann",
        ),
        DocumentKind(
            "type",
            TypeFields,
            lambda tx, name: {each.name: _of(each, TypeFields) for each in types.stored(tx, name)},
            _type,
            deletes=lambda name: False,
        ),
        DocumentKind(
            "share",
            ShareFields,
            shares.settings,
            _share,
            deletes=lambda name: False,
        ),
        DocumentKind(
            "block",
            BlockFields,
            lambda tx, name: {
                each: {"nodes": own} for each, own in blocks.nodes_of(tx, name).items()
            },
            _block,
        ),
        DocumentKind(
            "template",
            TemplateFields,
            lambda tx, name: {
                each.name: _of(each, TemplateFields) for each in templates.newest(tx, name=name)
            },
            _template,
            secret=_secret_template,
            pattern="(?!site/)[^@]+",
            form="GROUP/NAME, the site's by NAME alone; revisions are made, not named",
        ),
        DocumentKind(
            "volume",
            VolumeFields,
            lambda tx, name: {
                each.name: _of(each, VolumeFields) for each in volumes.of_data(tx, name)
            },
            _volume,
            pattern=".+/.+",
            form="GROUP/NAME, such as site/data",
        ),
        DocumentKind(
            "port",
            PortFields,
            lambda tx, name: {
                each.node: _of(each.port, PortFields)
                for each in switch_ports.entered(tx)
                if each.node
            },
            _port,
        ),
        DocumentKind("vcm", VcmFields, _vcms, _vcm),
    )
}
"""The kinds by name, in the order in which documents are applied: a kind follows those whose things
its documents name."""
