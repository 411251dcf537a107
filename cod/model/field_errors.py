"""Error messages about values that pydantic refuses, for the people who typed the values.
Pydantic's own messages are for programmers.

They are used for API requests, the site file and the settings of VCMs.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from cod.model.names import DNS_LABEL, DNS_NAME, ONE_LINE

__all__ = ["field_error", "unknown_key"]

PATTERNS = {  # pattern -> message if a value does not match it
    r"\S": "should not be empty",
    f"^{DNS_LABEL}$": (
        "should be lower-case letters, digits and hyphens between them, at most 63, such as web-2"
    ),
    r"^[a-z][a-z0-9._-]{0,31}$": (
        "should be a letter, then lower-case letters, digits, dots, hyphens and underscores, at"
        " most 32, such as ann"
    ),
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,29}$": (
        "should be letters, digits, dots, hyphens and underscores, at most 30, such as laptop"
    ),
    r"^[0-9a-f]{64}$": "should be a sha256: 64 of the digits 0-9 and a-f",
    ONE_LINE: "should be one line of text",
    r"^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$": "should be a MAC such as 52:54:00:12:34:56",
    r"^/": "should be a whole path, which begins with /",
    f"^{DNS_NAME}$": "should be a DNS name in lower case (a-z, 0-9, -)",
    r"^[A-Za-z0-9.:-]*$": "should be a host's name or address",
    r"^(ldaps?://[A-Za-z0-9.:\[\]-]+)?$": (
        "should be ldaps://HOST or ldap://HOST, with :PORT where it is another"
    ),
    r"^(https?://[^\s?#]+)?$": "should be an https:// or http:// URL without ? and #",
    r"^@": "should begin with @",
    r"^([0-9]{1,18})(?:-([0-9]{1,18})(?:-([0-9a-f]{8}))?)?$": (
        "should be a position of the stream, such as 17-3"
    ),
}
_TYPES = {  # pydantic's names of errors begin with these -> message
    ("model_", "dict_"): "should be an object with names and values",
    ("list_", "tuple_"): "should be a list",
    ("int_",): "should be a whole number",
    ("float_",): "should be a number",
    ("bool_",): "should be true or false",
    ("string_type", "string_sub_type"): "should be text",
    ("string_unicode",): "should be text in UTF-8",
}
_SENTENCES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "missing": lambda limits: "is missing",
    "extra_forbidden": lambda limits: "is not known here",
    "string_pattern_mismatch": lambda limits: PATTERNS[limits["pattern"]],
    "string_too_short": lambda limits: (
        "is missing"
        if limits["min_length"] == 1
        else (f"should be at least {limits['min_length']} characters long")
    ),
    "string_too_long": lambda limits: f"should be at most {limits['max_length']} characters long",
    "too_short": lambda limits: (
        "is empty"
        if limits["min_length"] == 1
        else f"should have at least {limits['min_length']:,} entries"
    ),
    "too_long": lambda limits: f"should have at most {limits['max_length']:,} entries",
    "greater_than": lambda limits: f"should be more than {limits['gt']:.12g}",
    "greater_than_equal": lambda limits: f"should be at least {limits['ge']:.12g}",
    "less_than": lambda limits: f"should be less than {limits['lt']:.12g}",
    "less_than_equal": lambda limits: f"should be at most {limits['le']:.12g}",
    "literal_error": lambda limits: f"should be {limits['expected']}",
    "enum": lambda limits: f"should be {limits['expected']}",
}


def field_error(error: Mapping[str, Any]) -> str:
    """Return the message for one of a ValidationError's `errors`, with its context, as a phrase
    that follows the name of the field."""
    sentence_of = _SENTENCES.get(error["type"])
    for beginnings, phrase in _TYPES.items():
        if error["type"].startswith(beginnings):
            return phrase
    try:
        return (
            sentence_of(error.get("ctx", {}))
            if sentence_of
            else error["msg"].removeprefix("Value error, ").removeprefix("Input ")
        )
    except KeyError:  # a pattern that is not in `PATTERNS`
        return str(error["msg"])


def unknown_key(name: str, known: Collection[str]) -> str:
    """Return the message for a key that a table does not have, with the key that may be meant."""
    near = difflib.get_close_matches(name, known, 1)
    return "no such key; " + (
        f"did you mean {near[0]!r}?" if near else f"this table has {', '.join(known)}"
    )
