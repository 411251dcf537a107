"""The database: reachable, of this program's schema, its clock the host's."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from cod.doctor.finding import BAD, GOOD, UNSEEN, WARNING, Context, Finding
from cod.store import engine as store
from cod.store import schema

APART = 2.0  # seconds between the clocks of database and host that harm nobody
SLOW = 0.1  # seconds of a question
REMEDY = (
    "`[server] database` in the site file names it; is the database server up, and may COD's user"
    " sign in?"
)


def findings(context: Context) -> Iterator[Finding]:
    url = make_url(context.settings.database)
    if url.get_backend_name() == "sqlite":
        path = Path(url.database or "")
        if not path.exists():
            yield Finding(
                BAD, f"{path} is not there", "`cod init` makes it, `cod restore` brings it back"
            )
            return
        if not os.access(path, os.R_OK | os.W_OK):
            yield Finding(
                UNSEEN,
                f"{path} is for its owner alone",
                "run `cod doctor` as root, or as the user that the server runs as",
            )
            return
    engine = store.connect(context.settings.database)
    try:
        newer = schema.check(engine)
        begin = time.monotonic()
        theirs = store.clock(engine)
        took = time.monotonic() - begin
    except schema.SchemaMismatch as error:
        yield Finding(
            BAD, str(error), "`cod db upgrade`, or the version of COD that made the database"
        )
        return
    except DBAPIError as error:
        yield Finding(BAD, f"{url.render_as_string()}: {error.orig}", REMEDY)
        return
    finally:
        engine.dispose()
    words = f"{url.get_backend_name()}, schema {schema.head()}, answers in {took * 1000:.1f} ms"
    apart = None if theirs is None else theirs - time.time()
    if apart is not None and abs(apart) > APART:
        yield Finding(
            WARNING,
            f"{words}; its clock is {apart:+.0f} s from this host's",
            "synchronise both hosts' clocks (chrony)",
        )
    elif newer:
        yield Finding(WARNING, newer, "install the newer version of COD on this host, too")
    elif took > SLOW:
        yield Finding(
            WARNING,
            f"{words}: slow",
            "every DHCP answer waits for a commit: look at the disk, "
            "or at the network between the two",
        )
    else:
        yield Finding(GOOD, words)
