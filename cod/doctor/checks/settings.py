"""Check for settings in which the site file contradicts a change made while the servers ran."""

from __future__ import annotations

from collections.abc import Iterator

from cod.doctor.finding import GOOD, UNSEEN, WARNING, Context, Finding
from cod.doctor.rows import items
from cod.quantity import counted


def findings(context: Context) -> Iterator[Finding]:
    """Yield a finding for each setting whose change contradicts the site file, by the running
    server's report."""
    every = items(context.settings, "/settings")
    if every is None:
        yield Finding(UNSEEN, "no server runs that knows of changed settings")
        return
    odd = [each for each in every if each["problem"]]
    for each in odd:
        yield Finding(
            WARNING,
            f"{each['name']} is {each['text'] or 'not set'}. {each['problem']}",
            f"`cod settings set {each['name']} --site-file` takes the change back",
        )
    if not odd:
        changed = sum(each["source"] == "change" for each in every)
        yield Finding(GOOD, f"{counted(changed, 'setting')} changed beside the site file")
