"""Logs: one line for each message, text for people or JSON for programs, to standard error.
Twisted's own log is included.

Fields go in `extra`: ``log.info("...", extra={"node": name, "mac": mac})``. Passwords in URLs are
masked in the output; no other secret is ever given to a logger.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from functools import cache
from typing import Any

_USUAL = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {
    "message",
    "asctime",
    "taskName",
}
# C0, DEL, C1; line and paragraph separators; characters that change the direction of writing.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+@")


def set_up(level: str, form: str, part: str) -> None:
    """Send this process's log to standard error; `part` names the process in each line."""
    out = logging.StreamHandler(sys.stderr)
    out.setFormatter(JsonLine(part) if form == "json" else TextLine(part))
    root = logging.getLogger()
    root.handlers[:] = [out]
    set_level(level)
    logging.captureWarnings(True)
    _bridge_twisted()


def set_level(level: str) -> None:
    """Log `level` and worse from now on ('debug', 'info', 'warning', 'error')."""
    logging.getLogger().setLevel(level.upper())
    for chatty in ("alembic", "sqlalchemy"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def masked(text: str) -> str:
    """Return `text` with the passwords of URLs replaced."""
    return _PASSWORD.sub(r"\1***@", text)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {
        key: value for key, value in vars(record).items() if key not in _USUAL and value is not None
    }


class TextLine(logging.Formatter):
    """``2026-01-31T12:00:00Z info edge confd: n1: order 7.3 done [mac=…]``; a traceback follows,
    indented.

    The brackets hold the fields whose values the message does not contain.
    """

    def __init__(self, part: str) -> None:
        super().__init__()
        self._part = part

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        message = _one_line(record.getMessage())
        more = " ".join(
            f"{key}={value}" for key, value in _fields(record).items() if str(value) not in message
        )
        message += f" [{_one_line(more)}]" if more else ""
        line = (
            f"{at}.{record.msecs:03.0f}Z {record.levelname.lower()} {self._part}"
            f" {record.name.removeprefix('cod.')}: {message}"
        )
        if record.exc_info:
            line += "".join(
                f"\n    {_one_line(each)}"
                for each in self.formatException(record.exc_info).splitlines()
            )
        return masked(line)


class JsonLine(logging.Formatter):
    """One JSON object: at, level, part, logger, message, the message's fields, traceback."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self._part = part

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line."""
        line: dict[str, Any] = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "part": self._part,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return masked(json.dumps(line, default=str))


def _one_line(text: str) -> str:
    """Return the text with control characters escaped, so that text from outside can neither forge
    a second line nor control the terminal that shows the log."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


@cache  # a second time Twisted would write each line twice
def _bridge_twisted() -> None:
    from twisted.logger import globalLogBeginner

    observer: Any = _from_twisted
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False, discardBuffer=True)


def _from_twisted(event: Any) -> None:
    """Log an event of Twisted's log. Its messages at 'info' (ports open, factories start) are
    logged as 'debug'."""
    from twisted.logger import LogLevel, formatEvent

    failure, level = event.get("log_failure"), event.get("log_level")
    usual = {
        LogLevel.warn: logging.WARNING,
        LogLevel.error: logging.ERROR,
        LogLevel.critical: logging.ERROR,
    }
    logging.getLogger("twisted").log(
        usual.get(level, logging.DEBUG),
        "%s",
        formatEvent(event).partition("\n")[0],
        exc_info=(failure.type, failure.value, failure.getTracebackObject()) if failure else None,
    )
