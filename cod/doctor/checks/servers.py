"""Checks of the site's servers: a host's parts were started together; the other servers were seen
lately, are of this version, and have the addresses in the site file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version

from cod.doctor.finding import GOOD, WARNING, Context, Finding
from cod.doctor.rows import rows
from cod.model import HostPart, Site
from cod.quantity import span
from cod.store import schema, servers

AHEAD = 5.0  # seconds that harm nobody
LATER = 60.0  # seconds between the starts of a host's first and its last part that mean nothing
LATELY = 3600.0  # seconds


def findings(context: Context) -> Iterator[Finding]:
    """Yield findings about faults of the site's servers. A database that does not answer is
    reported by its own check."""
    parts = rows(context.settings, servers.every)
    if parts is None:
        return
    yield from _restarted(parts, context.now)
    here = version("cod"), schema.head()
    newest = {each.server: each for each in sorted(parts, key=lambda each: each.seen_at)}
    others = [each for each in newest.values() if each.server != context.settings.name]
    good = True
    for each in sorted(others, key=lambda other: other.server):
        silence = context.now - each.seen_at
        if silence > servers.SILENT:
            good = False
            yield Finding(
                WARNING,
                f"{each.server} ({', '.join(each.addresses)}) has not been seen for"
                f" {span(silence)}",
                "start it; a host that is gone for good is forgotten after a week",
            )
        elif silence < -AHEAD:
            good = False
            yield Finding(
                WARNING,
                f"the clock of {each.server} is {span(-silence)} ahead of this host's",
                "synchronise both hosts' clocks (chrony): nodes' deadlines go by them",
            )
        elif (each.version, each.database_schema) != here:
            good = False
            yield Finding(
                WARNING,
                f"{each.server} runs version {each.version} (schema {each.database_schema}), and"
                f" this host has {here[0]} (schema {here[1]})",
                "upgrade the older one: docs/upgrading",
            )
    for address in sorted(_unseen(context.site, {a for each in others for a in each.addresses})):
        good = False
        yield Finding(
            WARNING,
            f"no server has been seen at {address}, which `server` in [[subnet]] of the site file"
            " lists",
            "start COD on that host, or take the address out of the site file",
        )
    if others and good:
        yield Finding(GOOD, f"other servers: {', '.join(sorted(one.server for one in others))}")


def _restarted(parts: Sequence[HostPart], now: float) -> Iterator[Finding]:
    """Yield a finding for each running part that was lately started without the others of its
    host."""
    running = [each for each in parts if now - each.seen_at <= servers.SILENT]
    for part in running:
        # only parts seen since then: after a restart of all parts, other rows are old for a while
        others = (
            each.started_at
            for each in running
            if each.server == part.server and each.seen_at > part.started_at
        )
        first = min(others, default=part.started_at)
        if part.started_at > first + LATER and now - part.started_at < LATELY:
            yield Finding(
                WARNING,
                f"{part.part} of {part.server} was started {span(now - part.started_at)} ago,"
                f" {span(part.started_at - first)} after the host's first part",
                "if nobody did that, it has ended by itself, perhaps many times: the log of"
                f" {part.server} says how",
            )


def _unseen(site: Site, seen: set[str]) -> set[str]:
    return {each for subnet in site.subnets for each in subnet.others} - seen
