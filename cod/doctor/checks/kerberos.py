"""Check of the command that fetches nodes' keytabs. The KDCs are asked by the check `outside`."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cod.doctor.finding import BAD, Context, Finding


def findings(context: Context) -> Iterator[Finding]:
    """Yield a finding if the command for keytabs is not an executable program."""
    command = context.site.kerberos.keytab_command
    if command and not (os.path.isfile(command) and os.access(command, os.X_OK)):
        remedy = f"put a program there that anybody may run: chmod 755 {command} (docs/kerberos)"
        yield Finding(BAD, f"[kerberos] keytab_command: {command} cannot be run", remedy)
