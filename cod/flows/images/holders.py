"""Hosts of the site and their copies of image files, which other hosts fetch from them."""

from __future__ import annotations

from collections.abc import Collection

from cod.model import HostPart, ImageHolders
from cod.store import servers
from cod.store.engine import Tx
from cod.store.images import images


def note(tx: Tx, *, server: str, names: Collection[str]) -> None:
    """Store which files a host has: images by digest, uploads by name. Records of files on
    forgotten hosts are kept only for needed files that no other host has."""
    servers.hold(tx, server, names)
    if left := servers.held_by_forgotten(tx, server):
        wanted = images.digests(tx) | {each.rpartition("/")[2] for each in images.sources(tx)}
        holders = servers.holders(tx, {name for _, name in left})
        forgotten = {host for host, _ in left}
        here = {name for name, hosts in holders.items() if not forgotten.issuperset(hosts)}
        servers.release(tx, [each for each in left if each[1] in here or each[1] not in wanted])


def of(tx: Tx, *, digest: str, server: str, now: float) -> tuple[HostPart, ...]:
    """Return the hosts other than `server` that serve an image of the site."""
    return _of(tx, [digest] if digest in images.digests(tx) else [], server, now).get(digest, ())


def lacking(tx: Tx, *, server: str, present: Collection[str], now: float) -> ImageHolders:
    """Return all images of the site, by digest, and the other hosts that serve those which `server`
    lacks. `present`: the images that `server` has."""
    needed = images.digests(tx)
    return ImageHolders(frozenset(needed), _of(tx, needed - set(present), server, now))


def _of(
    tx: Tx, digests: Collection[str], server: str, now: float
) -> dict[str, tuple[HostPart, ...]]:
    servers_up = servers.image_servers(tx, now)
    found = {
        digest: tuple(servers_up[each] for each in holders if each in servers_up and each != server)
        for digest, holders in servers.holders(tx, digests).items()
    }
    return {digest: hosts for digest, hosts in found.items() if hosts}
