"""Configuration templates: added as revisions, found by name, retired.

A document that comes here has been checked against schema/template.rng (`wire.xmldoc`).
"""

from __future__ import annotations

from cod.model import Refused, Template
from cod.policy.nodes import prime, template
from cod.policy.people import names
from cod.store.engine import Tx
from cod.store.images import images, templates
from cod.store.people import groups

image_names = templates.image_names
newest, resolve = templates.newest, templates.named


def read(document: str) -> template.Configuration:
    """Return a document's configuration, after all checks that need no database: these would keep a
    database thread busy. Raises `Refused`."""
    configuration = template.parse(document)
    template.check_hardware(configuration)
    return configuration


def check(tx: Tx, *, configuration: template.Configuration, group: str = "") -> None:
    """Check that a document that was read can be added for the group, by its name, its images and
    its secret. Raises `Refused`."""
    owner = groups.prefix(tx, groups.owner_id(tx, group))
    names.full(owner, configuration.name)
    _check_images(tx, configuration, owner)
    _check_secret(configuration, owner)


def add(
    tx: Tx,
    *,
    document: str,
    configuration: template.Configuration | None = None,
    group: str = "",
    now: float,
) -> Template:
    """Add a document as the next revision of the template that it names, as `names.full` accepts
    names. If it equals the newest revision, nothing changes. Raises `Refused`.

    configuration  what `read` returned for the document; None: read it now
    group          the owner; '' or 'site': the site
    """
    configuration = configuration or read(document)
    group_id = groups.owner_id(tx, group)
    owner = groups.prefix(tx, group_id)
    name = names.full(owner, configuration.name)
    _check_images(tx, configuration, owner)
    _check_secret(configuration, owner)
    return templates.append(tx, name, document, group_id, now)


def _check_images(tx: Tx, configuration: template.Configuration, owner: str) -> None:
    prime.check_images(
        configuration, images.resolve(tx, template.image_names(configuration), owner, lock=True)
    )


def _check_secret(configuration: template.Configuration, owner: str) -> None:
    """Raise `Refused` for a secret that every user of the site could read."""
    if configuration.secret and not owner:
        raise Refused(
            "invalid",
            "every user reads the site's templates: add one with secret user data for a group",
            "user-data",
        )


def every(tx: Tx, *, name: str = "", groups: frozenset[int] | None = None) -> list[Template]:
    """Return the newest live revision of every template of these groups and of the site (None: of
    all); with a `name`, all revisions of that template. Raises `Refused` if there is no template of
    that name."""
    if not name:
        return templates.newest(tx, groups)
    if not (found := templates.revisions(tx, name)):
        raise Refused("invalid", f"there is no template {name!r}", "name")
    return found


def retire(tx: Tx, *, name: str, now: float) -> list[Template]:
    """Retire 'name@revision', or with a bare 'name' all its revisions; return the revisions that
    were retired.

    Raises `Refused` while a vcluster, a node or a waiting request uses one of them.
    """
    wanted = [resolve(tx, name=name)] if "@" in name else templates.revisions(tx, name, lock=True)
    wanted = [row for row in wanted if row.retired_at is None]
    if not wanted:
        raise Refused("not_found", f"there is no template {name!r} to retire", "template")
    used = templates.in_use(tx)
    if busy := [f"{row.name}@{row.revision}" for row in wanted if row.id in used]:
        raise Refused("conflict", f"{', '.join(busy)} is in use", "template")
    for row in wanted:
        templates.retire(tx, row.id, now)
    return wanted
