"""Summaries of templates' documents, for people who choose among templates. Stored documents have
been checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from xml.etree import ElementTree

from cod.model import SITE, Template, owner_of


@dataclass(frozen=True, slots=True)
class Described:
    """A summary of a template.

    images       the full names of the images that it writes or boots, as far as they are known
    mode         'disk' or 'diskless'
    requires     its requirements on nodes, as XML; '' for none
    seeded       its nodes get their name and the group's keys (cloud-init)
    own_keys     its user data has SSH keys of its own
    root_closed  its user data disables root's login, so that people log in by accounts of their own
    """

    template: Template
    about: str
    images: tuple[str, ...]
    mode: str
    requires: str
    seeded: bool = False
    own_keys: bool = False
    root_closed: bool = False


def described(template: Template, images: Mapping[str, str] = MappingProxyType({})) -> Described:
    """Return the summary of a template. `images` has the full names of known images by the names
    that the document uses."""
    root = ElementTree.fromstring(template.document)
    boot, requires, seed = root.find("boot"), root.find("requires"), root.find("personalise")
    own = "" if seed is None else seed.findtext("user-data", "")
    files = (each for each in root.iter() if each.tag in ("image", "kernel", "ramdisk"))
    named = [
        images.get(name, name) for each in files if (name := each.get("name") or each.get("image"))
    ]
    return Described(
        template,
        " ".join((root.findtext("description") or "").split()),
        tuple(dict.fromkeys(named)),
        "disk" if boot is None else boot.get("mode", "disk"),
        "" if requires is None else ElementTree.tostring(requires, encoding="unicode").strip(),
        seed is not None and seed.get("seed") == "nocloud",
        any(word in own for word in _KEYS),
        _ROOT_CLOSED.search(own) is not None,
    )


def form_names(names: Iterable[str]) -> dict[str, str]:
    """Return the names that a form uses for these full names of images or templates. The site's
    'debian' is 'site/debian' if a group has a 'debian', too, because the bare name would mean the
    group's."""
    every = list(names)
    taken = {name.rpartition("/")[2] for name in every if owner_of(name)}
    return {name: f"{SITE}/{name}" if name in taken else name for name in every}


# cloud-init's names for SSH keys
_KEYS = ("ssh_authorized_keys", "ssh_import_id", "ssh-authorized-keys")
_ROOT_CLOSED = re.compile(r"^\s*disable_root:\s*true\s*$", re.MULTILINE)
