"""What a template's document says, for people who choose among templates. What is stored has been checked."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree import ElementTree

from cod.model import Template


@dataclass(frozen=True, slots=True)
class Described:
    """A template in short. `images`: the names of those of the site that it writes or boots; `mode`: 'disk' or
    'diskless'; `requires`: what it wants of nodes, XML or ''. `seeded`: its nodes are told their name and the group's
    keys (cloud-init); `own_keys`: its user data lets in others."""

    template: Template
    about: str
    images: tuple[str, ...]
    mode: str
    requires: str
    seeded: bool = False
    own_keys: bool = False


def described(template: Template) -> Described:
    """A template in short."""
    root = ElementTree.fromstring(template.document)
    boot, requires, seed = root.find("boot"), root.find("requires"), root.find("personalise")
    own = "" if seed is None else seed.findtext("user-data", "")
    files = (each for each in root.iter() if each.tag in ("image", "kernel", "ramdisk"))
    named = [each.get("name") or each.get("image") for each in files]
    return Described(
        template, " ".join((root.findtext("description") or "").split()), tuple(dict.fromkeys(filter(None, named))),
        "disk" if boot is None else boot.get("mode", "disk"),
        "" if requires is None else ElementTree.tostring(requires, encoding="unicode").strip(),
        seed is not None and seed.get("seed") == "nocloud", any(word in own for word in _KEYS))


_KEYS = ("ssh_authorized_keys", "ssh_import_id", "ssh-authorized-keys")  # cloud-init's words for keys
