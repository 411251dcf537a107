"""Warewulf 4's nodes.conf: nodes, each with the values of its profiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from cod.machine_lists.entry import (
    ListedMachine,
    NotTaken,
    UnreadableList,
    ignored,
    label,
    mapping,
    tags_of,
    taken_macs,
    text_of,
    word,
)

_IMAGES = "COD's templates say what nodes run"
_REASONS = {
    "image name": _IMAGES,
    "container name": _IMAGES,
    "system overlay": _IMAGES,
    "runtime overlay": _IMAGES,
    "kernel": _IMAGES,
    "disks": _IMAGES,
}


class _Texts(yaml.SafeLoader):
    """YAML whose scalars are all texts. As a YAML number, the MAC 52:54:00:12:34:56 would be read
    to the base of 60."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [each for each in known if each[0].endswith((":merge", ":null"))]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read(path: Path) -> Iterator[ListedMachine | NotTaken]:
    """Yield the machines of the nodes."""
    try:
        content = mapping(yaml.load(text_of(path), Loader=_Texts))
    except (yaml.YAMLError, RecursionError) as error:
        raise UnreadableList(f"{path} is no YAML: {error}") from None
    profiles = mapping(content.get("nodeprofiles"))
    for name, own in mapping(content.get("nodes")).items():
        where = f"node {name}"
        node: Mapping[str, Any] = {}
        named = mapping(own).get("profiles")
        for each in [*(named if isinstance(named, list) else []), None]:
            node = _over(node, mapping(own if each is None else profiles.get(each)))
        devices = mapping(node.get("network devices"))
        first = word(node.get("primary network"))
        order = sorted(devices, key=lambda device: (device != first, device != "default"))
        texts = [word(mapping(devices[device]).get("hwaddr")) for device in order]
        macs, faults = taken_macs(where, filter(None, texts))
        yield from faults
        yield from ignored(where, node, _REASONS)
        ipmi = mapping(node.get("ipmi"))
        if word(ipmi.get("username")):
            reason = "accounts are in the site file: name one with --account"
            yield NotTaken(where, "ipmi username", reason)
        address = word(ipmi.get("ipaddr"))
        driver = "ipmi" if address else ""
        tags = tags_of(f"{key} {word(value)}" for key, value in mapping(node.get("tags")).items())
        yield ListedMachine(
            where, label(name), tuple(macs), driver=driver, address=address, tags=tags
        )


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return both mappings as one, at any depth. Values of `above` have precedence."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _over(merged[key], value) if both else value
    return merged
