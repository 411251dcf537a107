"""Templates that use an image: a check that they can be installed with a new image of the same
name."""

from __future__ import annotations

from collections.abc import Mapping

from cod.model import Image, Refused, owner_of, possible_names
from cod.policy.nodes import prime, template
from cod.store.engine import Tx
from cod.store.images import images, templates


def check(tx: Tx, image: Image) -> None:
    """Raise `Refused` if a live template of the group that uses the site's image of this name could
    not be installed with the group's new image any more. Nodes would fail with this template until
    they are out of service."""
    group = owner_of(image.name)
    for row in templates.live(tx, frozenset({image.group_id or 0})):
        if owner_of(row.name) != group:
            continue
        configuration = template.parse(row.document)
        named = template.image_names(configuration)
        images_by_name = images.resolve(tx, named, group)
        then = images_by_name | {
            name: image for name in named if image.name in possible_names(name, group)
        }
        why = (
            _fault(configuration, then)
            if then != images_by_name and not _fault(configuration, images_by_name)
            else ""
        )
        if why:
            raise Refused(
                "conflict",
                f"template {row.name}@{row.revision} names it, and could not be installed with "
                f"it: {why}",
                "name",
            )


def _fault(configuration: template.Configuration, images_by_name: Mapping[str, Image]) -> str:
    try:
        prime.check_images(configuration, images_by_name)
    except Refused as refused:
        return refused.sentence
    return ""
