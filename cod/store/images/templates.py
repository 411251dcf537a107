"""Configuration templates. Their rows never change; a change is a new revision."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from xml.etree import ElementTree

from sqlalchemy import select

from cod.model import Image, Refused, Template, owner_of, possible_names
from cod.states import UNDECIDED, VclusterState
from cod.store import tables as t
from cod.store.engine import Tx
from cod.store.images import images
from cod.store.people import groups
from cod.store.rows import Rows, only, theirs_or_shared

_c = t.config_templates.c
ROWS = Rows(Template, t.config_templates)
get, known, add = ROWS.get, ROWS.known, ROWS.add


def find(tx: Tx, name: str) -> Template | None:
    """Return the template with that full name, in its newest revision that is not retired, or the
    revision that 'name@revision' names; None if there is none."""
    own, at, revision = name.partition("@")
    if at:
        plain = revision.isdecimal() and len(revision) < 10
        return ROWS.by(tx, name=own, revision=int(revision)) if plain else None
    return ROWS.find(tx, _c.name == own, _c.retired_at.is_(None), order=_c.revision.desc())


def named(tx: Tx, name: str) -> Template:
    """Return the template that `find` finds. Raises `Refused` if there is none."""
    found = find(tx, name)
    if found is None:
        raise Refused("not_found", f"there is no template {name!r}", "template")
    return found


def usable(tx: Tx, name: str, group_id: int, field: str = "template") -> Template:
    """Return the template that `name` means on nodes of the group: the group's own, or the site's.
    Raises `Refused`, with the same words for another group's template as for an unknown one.

    A person who may see two groups therefore cannot bring one group's images onto nodes where the
    other group's people are root.
    """
    group = groups.get(tx, group_id).name
    own, at, revision = name.partition("@")
    live = next((row for full in possible_names(own, group) if (row := find(tx, full))), None)
    found = find(tx, f"{live.name}{at}{revision}") if live and at else live
    if found is None or found.retired_at is not None:
        raise Refused(
            "not_found",
            f"there is no template {name!r} for group {group}: its nodes run its own templates "
            "that are not retired, and the site's",
            field,
        )
    return found


def documents(tx: Tx, template_ids: Iterable[int]) -> dict[int, str]:
    """Return the documents of those revisions by id."""
    ids = list(template_ids)
    if not ids:
        return {}
    return {row[0]: row[1] for row in tx.execute(select(_c.id, _c.document).where(_c.id.in_(ids)))}


def of_vclusters(tx: Tx, vcluster_ids: Collection[int]) -> list[tuple[str, str]]:
    """Return (name, document) of the revisions that nodes of those vclusters run now, and of those
    that new nodes would run."""
    n, v = t.nodes.c, t.vclusters.c
    run = select(n.template_id).where(n.vcluster_id.in_(list(vcluster_ids)))
    new = select(v.template_id).where(v.id.in_(list(vcluster_ids)))
    query = select(_c.name, _c.document).where(_c.id.in_(run) | _c.id.in_(new)).order_by(_c.name)
    return [(row[0], row[1]) for row in tx.execute(query)]


def for_matching(tx: Tx, template_ids: Iterable[int]) -> dict[int, str]:
    """Return the documents of these templates by id, with the recorded facts about their images
    added in <known> elements: see `nodes.template`."""
    rows = tx.execute(select(_c.id, _c.name, _c.document).where(_c.id.in_(list(template_ids))))
    return with_known(tx, {row.id: (row.name, row.document) for row in rows})


def with_known(tx: Tx, wanted: Mapping[int, tuple[str, str]]) -> dict[int, str]:
    """Return documents with the recorded facts about their images added in <known> elements. Each
    value of `wanted` is the template's full name and its document."""
    by_id = _images(tx, wanted.values())
    known = {
        group: {
            name: f'<known name="{name}" size="{image.size}" sector="{image.sector}"'
            f' ends_at="{image.ends_at}"/>'
            for name, image in found.items()
            if image.size > 0
        }
        for group, found in by_id.items()
    }
    found: dict[int, str] = {}
    for key, (name, document) in wanted.items():
        inner = "".join(
            known[owner_of(name)].get(each, "") for each in sorted(_image_names(document))
        )
        before, end, after = document.rpartition("</template")
        found[key] = f"{before}{inner}{end}{after}" if inner and end else document
    return found


@lru_cache(maxsize=1024)
def _image_names(document: str) -> frozenset[str]:
    root = ElementTree.fromstring(document)
    names = {each.get("name", "") for each in root.iterfind("image")}
    return frozenset(names | {each.get("image", "") for each in root.iterfind("boot/*")}) - {""}


def _images(tx: Tx, wanted: Iterable[tuple[str, str]]) -> dict[str, dict[str, Image]]:
    """Return the images that templates name, by group and the name as given: see
    `images.meant_by`."""
    names: dict[str, set[str]] = {}
    for name, document in wanted:
        names.setdefault(owner_of(name), set()).update(_image_names(document))
    return images.meant_by(tx, names)


def image_names(tx: Tx, rows: Sequence[Template]) -> dict[int, dict[str, str]]:
    """Return the full names of the images that templates name, by the template's id and the name as
    given. Names without an image are left out."""
    named = _images(tx, ((row.name, row.document) for row in rows))
    return {
        row.id: {
            name: found.name
            for name in sorted(_image_names(row.document))
            if (found := named[owner_of(row.name)].get(name))
        }
        for row in rows
    }


def newest(tx: Tx, groups: frozenset[int] | None = None, name: str | None = None) -> list[Template]:
    """Return each template of these groups and of the site (None: of all groups) in its newest
    revision that is not retired, by name. With a `name`, only the template of that name."""
    found = {row.name: row for row in live(tx, groups, name)}
    return [found[name] for name in sorted(found)]


def live(tx: Tx, groups: frozenset[int] | None = None, name: str | None = None) -> list[Template]:
    """Return every revision that is not retired of the templates that `newest` considers, by name,
    then revision."""
    which = [*theirs_or_shared(_c.group_id, groups), *only({_c.name: name})]
    return ROWS.every(tx, _c.retired_at.is_(None), *which, order=(_c.name, _c.revision))


def revisions(tx: Tx, name: str, *, lock: bool = False) -> list[Template]:
    """Return every revision of the template with that full name, retired ones too, oldest first."""
    return ROWS.every(tx, _c.name == name, order=_c.revision, lock=lock)


def append(tx: Tx, name: str, document: str, group_id: int | None, now: float) -> Template:
    """Add a checked document as the next revision of the template with that full name, and return
    it. A document equal to that of the newest revision adds none."""
    digest = blake2b(document.encode(), digest_size=32).hexdigest()
    before = revisions(tx, name, lock=True)
    if before and before[-1].digest == digest and before[-1].retired_at is None:
        return before[-1]
    return add(
        tx,
        name=name,
        revision=before[-1].revision + 1 if before else 1,
        group_id=group_id,
        document=document,
        digest=digest,
        created_at=now,
    )


def retire(tx: Tx, template_id: int, now: float) -> None:
    """Mark a revision retired: nothing new may use it."""
    ROWS.set(tx, template_id, retired_at=now)


def in_use(tx: Tx) -> set[int]:
    """Return the ids of the revisions that live vclusters, nodes or undecided requests use."""
    v, q = t.vclusters.c, t.request_tuples.c
    queries = (
        select(v.template_id).where(v.state != VclusterState.ENDED),
        select(t.nodes.c.template_id).where(t.nodes.c.template_id.is_not(None)),
        select(q.template_id)
        .join(t.node_requests, t.node_requests.c.id == q.request_id)
        .where(t.node_requests.c.state.in_(UNDECIDED)),
    )
    return {template_id for query in queries for template_id in tx.scalars(query.distinct())}
