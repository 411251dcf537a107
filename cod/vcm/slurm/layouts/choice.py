"""Choice of the layout for the installed Slurm. `squeue --json=list` lists its parsers, except in
22.05, which has only one and refuses the option."""

from __future__ import annotations

import re

from cod.vcm.batch.commands import NotUnderstood
from cod.vcm.slurm.layouts import v22_05, v23_11
from cod.vcm.slurm.layouts.document import Layout

READ = "22.05, and 23.11 to 26.05"
ALONE = "doesn't allow an argument"


def choose(listed: str) -> Layout:
    """Return the layout for the output of `squeue --json=list`. Raises `NotUnderstood`."""
    if ALONE in listed:
        return v22_05.LAYOUT
    known = re.findall(r"data_parser/(v[\d.]+)", listed)
    for parser in v23_11.PARSERS:
        if parser in known:
            return v23_11.layout(parser)
    raise NotUnderstood(
        f"squeue --json=list: {', '.join(known) or listed.strip()[:200]};"
        f" this VCM reads Slurm {READ}"
    )
