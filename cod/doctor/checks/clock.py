"""Check of the host's clock: whether the kernel counts it as synchronised. Leases, certificates and
secrets depend on the time."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Iterator

from cod.doctor.finding import GOOD, UNSEEN, WARNING, Context, Finding

_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
_MAX_ERROR = 3  # where `maxerror` is among the longs of struct timex


def findings(
    context: Context, adjtimex: Callable[[], tuple[int, int]] | None = None
) -> Iterator[Finding]:
    """Yield one finding. `adjtimex` returns the clock's state and the largest error in
    microseconds."""
    try:
        state, error = (adjtimex or _adjtimex)()
    except OSError as failure:
        yield Finding(
            UNSEEN, f"the kernel does not say whether it is synchronised: {failure.strerror}"
        )
        return
    if state < 0 or state == _TIME_ERROR:
        yield Finding(
            WARNING,
            "it is not synchronised: it drifts, and nobody sets it right",
            f"{_remedy()}; with several servers on one database this is not optional",
        )
    else:
        yield Finding(GOOD, f"synchronised, at most {error / 1000:.0f} ms off")


def _remedy() -> str:
    """Return how to give the clock a time server, which depends on whether chrony is installed."""
    if shutil.which("chronyd"):
        return (
            "`chronyc sources` lists the time servers that chrony reaches: name one of the site's"
            " in /etc/chrony/chrony.conf; after a start it takes a minute"
        )
    return "apt-get install chrony"


def _adjtimex() -> tuple[int, int]:
    timex = (ctypes.c_long * 64)()  # longer than the kernel's record; all zero: read, set nothing
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(timex)
    if state < 0:
        raise OSError(ctypes.get_errno(), "adjtimex")
    return state, timex[_MAX_ERROR]
