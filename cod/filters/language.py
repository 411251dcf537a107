"""The language of filters: text is read into a tree.

    rack = r12 and (state = free or since > 2h) and not name in (n1, n[010-020])

A word without a field is searched in several fields. Conditions beside each other must all match.
The grammar, from the weakest binding to the strongest:

    any    = all { "or" all }
    all    = one { [ "and" ] one }
    one    = "not" one | "(" any ")" | test | words
    test   = FIELD SIGN value          SIGN: a `Comparison`, or "!="
           | FIELD [ "not" ] "in" "(" value { "," value } ")"
    words  = word { "," word }

`nodes` reads a plain list of names. Both functions raise `Refused`, which says where the text
cannot be read and what was expected there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple, NoReturn, get_args

from cod.filters.fields import WORD_FIELDS, Comparison, FilterField, Value, ValueKind, read
from cod.filters.ranges import RangeFault, expanded
from cod.model.results import Refused

LONGEST = 4000  # characters of a filter
LONGEST_LIST = 100_000  # characters of a list of names
DEEPEST = 20  # parentheses and nots within each other
MOST_TESTS = 200  # tests and words of a filter
MOST_NAMES = 5000  # names that the ranges of a text stand for
NONE = "none"

_COMPARISONS = ("!=", *get_args(Comparison))
_SIGNS = "|".join(map(re.escape, sorted(("(", ")", ",", *_COMPARISONS), key=len, reverse=True)))
_NO_WORD = re.escape("".join(_COMPARISONS))
_TOKEN = re.compile(
    rf"""\s*(?:(?P<sign>{_SIGNS})|(?P<quoted>"[^"]*"|'[^']*')"""
    rf"""|(?P<word>(?:[^\s()\[\],"'&|;{_NO_WORD}]|\[[^\[\]\s()]*\])+))"""
)
_RESERVED = ("and", "or", "not", "in")


# ---------------------------------------------------------------- the tree


@dataclass(frozen=True, slots=True)
class FieldTest:
    """A field compared with values, of which one has to match. None stands for no value."""

    field: str
    comparison: Comparison
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class FreeWord:
    """A text that one of `fields` contains."""

    text: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AllOf:
    """A filter whose parts all match."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A filter of which at least one part matches."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """A filter whose part does not match."""

    part: Filter


Filter = FieldTest | FreeWord | AllOf | AnyOf | Not


@dataclass(frozen=True, slots=True)
class NodeNames:
    """Nodes by their names or other identifiers, in the order in which they were named.

    labels  names, MACs, serial numbers, UUIDs or host names
    blocks  names of blocks, all of whose nodes are named
    """

    labels: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()


# ---------------------------------------------------------------- reading


def where(text: str, fields: Mapping[str, FilterField], now: float) -> Filter:
    """Return the tree of a filter. `fields` are the fields that it may name. Lengths of time are
    counted back from `now`. Raises `Refused`."""
    return _FilterReader(text, "where", LONGEST).whole(fields, now)


def nodes(text: str) -> NodeNames:
    """Return the nodes that are named in a list: 'n[001-064,070], @rack12 52-54-00-00-00-01'.
    Raises `Refused`."""
    return _FilterReader(text, "names", LONGEST_LIST).names()


class _Token(NamedTuple):
    """A part of a text. `kind`: 'sign', 'quoted', 'word', or 'end'."""

    kind: str
    text: str
    place: int

    def is_word(self, *words: str) -> bool:
        """Return whether the token is one of these reserved words."""
        return self.kind == "word" and self.text.lower() in words


class _FilterReader:
    """Reads one text, from its first token to its last."""

    def __init__(self, text: str, source: str, longest: int) -> None:
        self._text, self._source = text, source
        if len(text) > longest:
            self._refuse(f"at most {longest:,} characters are read, not {len(text):,}")
        self._tokens = self._split()
        self._next = 0
        self._depth = self._tests = self._names = 0

    def _split(self) -> list[_Token]:
        tokens, place, end = [], 0, len(self._text.rstrip())
        while place < end:
            match = _TOKEN.match(self._text, place)
            if match is None:
                self._stuck(place)
            kind = match.lastgroup or ""
            tokens.append(_Token(kind, match[kind], match.start(kind)))
            place = match.end()
        return [*tokens, _Token("end", "", end)]

    def _stuck(self, place: int) -> NoReturn:
        """Refuse the text at a place where no token begins."""
        place += len(self._text[place:]) - len(self._text[place:].lstrip())
        match self._text[place]:
            case "'" | '"' as quote:
                self._fail(place, f"the {quote} that begins here has no end")
            case "[":
                self._fail(
                    place, "a range ends with ] and has numbers alone, such as [001-064,070]"
                )
            case "]":
                self._fail(place, "a range begins with [")
        self._fail(place, f"{self._text[place]!r} means nothing: write and, or, not, !=")

    # ------------------------------------------------ names

    def names(self) -> NodeNames:
        labels: dict[str, None] = {}
        blocks: dict[str, None] = {}
        while (token := self._take()).kind != "end":
            if token.text == ",":
                continue
            if token.kind == "sign":
                self._expect(token, "a name")
            into = blocks if token.text.startswith("@") else labels
            into |= dict.fromkeys(self._expanded(token, token.text.removeprefix("@")))
        return NodeNames(tuple(labels), tuple(blocks))

    def _expanded(self, token: _Token, text: str) -> list[str]:
        """Return the names that a word stands for."""
        if token.kind == "quoted":
            return [text[1:-1]]
        try:
            found = expanded(text, MOST_NAMES)
        except RangeFault as fault:
            skipped = len(token.text) - len(text)
            self._fail(token.place + skipped + fault.place, str(fault))
        if not text:
            self._fail(token.place, "expected a block's name behind @")
        self._names += len(found)
        if self._names > MOST_NAMES:
            self._fail(token.place, f"a list has at most {MOST_NAMES:,} names")
        return found

    # ------------------------------------------------ filters

    def whole(self, fields: Mapping[str, FilterField], now: float) -> Filter:
        self._fields, self._now = fields, now
        self._words = tuple(name for name in WORD_FIELDS if name in fields)
        found = self._any()
        if (token := self._take()).kind != "end":
            several = "; several values are written FIELD in (a, b)" if token.text == "," else ""
            self._expect(token, f"and, or, or the end{several}")
        return found

    def _any(self) -> Filter:
        parts = [self._all()]
        while self._peek().is_word("or"):
            self._take()
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _all(self) -> Filter:
        parts = [self._one()]
        while not self._at_end():
            if self._peek().is_word("and"):
                self._take()
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _at_end(self) -> bool:
        """Return whether the next token ends a row of conditions that must all match."""
        token = self._peek()
        signs = token.kind == "sign" and token.text != "("
        return signs or token.kind == "end" or token.is_word("or")

    def _one(self) -> Filter:
        token = self._take()
        if token.is_word("not"):
            return Not(self._deeper(token, self._one))
        if token.text == "(":
            inside = self._deeper(token, self._any)
            if (end := self._take()).text != ")" or end.kind != "sign":
                self._expect(end, "and, or, or )")
            return inside
        if token.kind not in ("word", "quoted") or token.is_word(*_RESERVED):
            self._expect(token, "a field, a word, not or (")
        following = self._peek()
        if following.kind == "sign" and following.text in _COMPARISONS:
            return self._comparison(self._field(token), self._take())
        if following.is_word("in") or (following.is_word("not") and self._peek(1).is_word("in")):
            return self._among(self._field(token))
        return self._word_list(token)

    def _spend(self, token: _Token, tests: int = 1) -> None:
        """Count `tests` more conditions for the database. Fails beyond `MOST_TESTS`."""
        self._tests += tests
        if self._tests > MOST_TESTS:
            self._fail(token.place, f"a filter has at most {MOST_TESTS} conditions")

    def _deeper(self, token: _Token, inside: Callable[[], Filter]) -> Filter:
        self._depth += 1
        if self._depth > DEEPEST:
            self._fail(token.place, f"at most {DEEPEST} parentheses and nots within each other")
        found = inside()
        self._depth -= 1
        return found

    def _field(self, token: _Token) -> FilterField:
        field = self._fields.get(token.text.lower()) if token.kind == "word" else None
        if field is None:
            near = get_close_matches(token.text.lower(), self._fields, 1)
            meant = f"is {near[0]} meant? " if near else ""
            known = ", ".join(sorted(self._fields))
            self._fail(token.place, f"there is no field {token.text}; {meant}Fields: {known}")
        return field

    def _comparison(self, field: FilterField, sign: _Token) -> Filter:
        if sign.text not in field.kind.comparisons:
            known = ", ".join(field.kind.comparisons)
            self._fail(sign.place, f"{field.name} is compared by {known}")
        if sign.text == "!=":
            return Not(self._test(field, "=", [self._value()]))
        return self._test(field, sign.text, [self._value()])  # type: ignore[arg-type]

    def _among(self, field: FilterField) -> Filter:
        turned = self._take().is_word("not")
        if turned:
            self._take()
        if (opening := self._take()).text != "(":
            self._expect(opening, "( and values with commas between")
        values = [self._value()]
        while (token := self._take()).text == ",":
            values.append(self._value())
        if token.text != ")":
            self._expect(token, ", or )")
        found = self._test(field, "=", values)
        return Not(found) if turned else found

    def _value(self) -> _Token:
        token = self._take()
        if token.kind not in ("word", "quoted"):
            self._expect(token, "a value")
        return token

    def _test(self, field: FilterField, comparison: Comparison, tokens: Sequence[_Token]) -> Filter:
        """Return the test of a field with the values of these tokens."""
        values: list[Value] = []
        compared: Comparison = comparison
        listed = comparison == "=" and field.kind is not ValueKind.ADDRESS  # in one list
        if listed:
            self._spend(tokens[0])
        for token in tokens:
            if token.is_word(NONE) and comparison == "=":
                values.append(None)
                continue
            texts = self._expanded(token, token.text)
            if not listed:
                self._spend(token, len(texts))
            for text in texts:
                try:
                    compared, found = read(field, comparison, text, self._now)
                except ValueError as error:
                    self._fail(token.place, f"{field.name}: {error}, not {text!r}")
                values += found
        return FieldTest(field.name, compared, tuple(values))

    def _word_list(self, first: _Token) -> Filter:
        """Return the filter for words with commas between, of which one has to match."""
        found = [self._word(first)]
        while self._peek().text == "," and self._peek().kind == "sign":
            self._take()
            found.append(self._word(self._value()))
        return found[0] if len(found) == 1 else AnyOf(tuple(found))

    def _word(self, token: _Token) -> Filter:
        self._spend(token)
        if token.kind == "quoted":
            return FreeWord(token.text[1:-1], self._words)
        if token.text.startswith("@"):
            return FieldTest("block", "=", tuple(self._expanded(token, token.text[1:])))
        if "[" in token.text:
            return FieldTest("name", "=", tuple(self._expanded(token, token.text)))
        return FreeWord(token.text, self._words)

    # ------------------------------------------------ tokens and faults

    def _peek(self, ahead: int = 0) -> _Token:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def _take(self) -> _Token:
        token = self._peek()
        self._next += 1
        return token

    def _expect(self, token: _Token, expected: str) -> NoReturn:
        found = f", not {token.text}" if token.kind != "end" else ""
        self._fail(token.place, f"expected {expected}{found}")

    def _fail(self, place: int, sentence: str) -> NoReturn:
        before = self._text[max(0, place - 20) : place].strip()
        behind = f" (behind {before!r})" if before else ""
        self._refuse(f"at character {place + 1}{behind}: {sentence}")

    def _refuse(self, sentence: str) -> NoReturn:
        raise Refused("invalid", sentence, self._source)
