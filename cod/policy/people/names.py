"""Rules for the names of nodes, vclusters, images and templates, and for remarks on nodes. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from cod.model import DNS_LABEL, Refused

_OWN = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")  # as in schema/template.rng
_POSITION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9./:-]{0,14}[A-Za-z0-9])?")
_TAG = re.compile(r"[a-z0-9]([a-z0-9._-]{0,30}[a-z0-9])?")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})", re.ASCII)
_PROVISIONAL = re.compile(r"node-[0-9a-f]{12}")
MOST_TAGS = 16  # of a node


def check_label(name: str, field: str = "name") -> None:
    """Raise `Refused`, about that field, unless `name` is a valid DNS label: names of nodes and
    vclusters become parts of DNS names."""
    if not re.fullmatch(DNS_LABEL, name):
        raise Refused(
            "invalid", f"{name!r} is no DNS label: use a-z, 0-9 and -, at most 63 of them", field
        )
    if name == "localhost":  # RFC 6761: programs take it for themselves
        raise Refused("invalid", "localhost is every machine's own name: choose another", field)


def check_position(text: str) -> None:
    """Raise `Refused` unless `text` can be a place in a rack, such as '17', '17-18' or 'A/3'."""
    if not _POSITION.fullmatch(text):
        raise Refused(
            "invalid",
            f"{text!r} is no position in a rack: use at most 16 letters and digits, and . / : -"
            " between them",
            "position",
        )


def checked_tags(words: Iterable[str]) -> tuple[str, ...]:
    """Return the tags in alphabetical order, each once and in lower case. Raises `Refused`."""
    tags = sorted({word.strip().lower() for word in words})
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise Refused(
                "invalid",
                f"{tag!r} is no tag: use a-z, 0-9 and . _ - between them, at most 32 of them",
                "tags",
            )
    if len(tags) > MOST_TAGS:
        raise Refused("invalid", f"a node has at most {MOST_TAGS} tags, not {len(tags)}", "tags")
    return tuple(tags)


def provisional(mac: str) -> str:
    """Return the provisional name of a node of which only the MAC is known."""
    return f"node-{mac.replace(':', '')}"


def is_provisional(name: str) -> bool:
    """Return whether a node's name is provisional: no person has named the node."""
    return _PROVISIONAL.fullmatch(name) is not None


def name_pattern(block: str, inside: Iterable[str], every: Iterable[str], count: int) -> str:
    """Return names for `count` new nodes of a block, as a range such as 'n[08-12]'. They continue
    the numbering of the block's nodes.

    inside  names of the block's nodes
    every   names of all nodes of the site, none of which is used again
    """
    own = (name for name in inside if not is_provisional(name))
    numbered = [match for name in own if (match := _NUMBERED.fullmatch(name))]
    stems = Counter(match[1] for match in numbered).most_common(1)
    stem = stems[0][0] if stems else f"{block}-"
    widths = [len(match[2]) for match in numbered if match[1] == stem]
    width = min(widths, default=max(2, len(str(count))))
    numbers = (match for name in every if (match := _NUMBERED.fullmatch(name)))
    first = max((int(match[2]) for match in numbers if match[1] == stem), default=0) + 1
    last = first + count - 1
    return f"{stem}[{first:0{width}}-{last:0{width}}]" if count > 1 else f"{stem}{first:0{width}}"


def full(group: str, name: str, field: str = "name", thing: str = "an image or template") -> str:
    """Return the full name of a thing of `group` ('': the site), such as 'group/name', given its
    bare or full name. `thing`: its noun, for the error.

    The site's names have no slash, nor have the bare names of groups' things: so things of two
    owners never have the same full name. Raises `Refused`, without revealing whether another group
    or its thing exists.
    """
    owner, slash, bare = name.rpartition("/")
    if slash and (not owner or owner != group):
        right = (
            f"{bare!r} or {f'{group}/{bare}'!r}"
            if group
            else f"{bare!r}, or name the group that it is for"
        )
        raise Refused(
            "invalid",
            f"{name!r} is no name for a thing of {f'group {group}' if group else 'the site'}: "
            f"say {right}",
            field,
        )
    if not _OWN.fullmatch(bare):
        raise Refused(
            "invalid",
            f"{bare!r} is no name for {thing}: lower-case letters, digits, '.', '_', "
            "'-', at most 63 of them",
            field,
        )
    return f"{group}/{bare}" if group else bare
