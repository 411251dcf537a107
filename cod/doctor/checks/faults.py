"""Check of lasting faults outside COD that the running server has met."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cod.doctor.finding import BAD, GOOD, UNSEEN, Context, Finding
from cod.doctor.rows import items
from cod.quantity import first_few, span

FEW = 5  # names that a finding tells
TABLE = "`cod fault list` has all of them; docs/troubleshooting tells when each is over"


def findings(context: Context) -> Iterator[Finding]:
    """Yield a finding for each lasting fault outside COD that the running server knows."""
    known = items(context.settings, "/faults")
    if known is None:
        yield Finding(UNSEEN, "no server runs that knows of faults outside")
        return
    lasting = [each for each in known if each["ended"] is None]
    for each in lasting:
        yield Finding(BAD, sentence(each, context.now), TABLE)
    if not lasting:
        yield Finding(GOOD, "the server knows of no fault outside")


def sentence(fault: Mapping[str, Any], now: float) -> str:
    """Return a sentence about a fault of the API: what it is, how long it has lasted, whom it
    affects, and who waits."""
    parts = [f"{fault['what']}: {fault['about']}"]
    if fault["since"] is not None:
        parts.append(f"since {span(now - fault['since'])}")
    for what, names in (("affects", fault["affects"]), ("waiting", fault["waits"])):
        if names:
            parts.append(f"{what} {first_few(names, FEW)}")
    return "; ".join(parts)
