"""Ranges and filters: text in, a tree out; errors that say where and what was expected."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cod.filters import language
from cod.filters.fields import WORD_FIELDS, FilterField, ValueKind, node_fields
from cod.filters.language import AllOf, AnyOf, FieldTest, Filter, FreeWord, NodeNames, Not
from cod.filters.ranges import RangeFault, expanded
from cod.model import AddressRange, Refused, ipv4

NOW = 1_000_000.0
FIELDS = {
    **node_fields(admin=True),
    "memory": FilterField("memory", ValueKind.SIZE),
    "lease": FilterField("lease", ValueKind.SPAN),
    "quiet": FilterField("quiet", ValueKind.FLAG),
}


def where(text: str) -> Filter:
    return language.where(text, FIELDS, NOW)


def compared(field: str, *values: object, by: str = "=") -> FieldTest:
    return FieldTest(field, by, values)


def word(text: str) -> FreeWord:
    return FreeWord(text, WORD_FIELDS)


# ---------------------------------------------------------------- ranges


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[001-003,070]", ["n001", "n002", "n003", "n070"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[099-101]x", ["n099x", "n100x", "n101x"]),
        ("r[1-2]n[01,07]", ["r1n01", "r1n07", "r2n01", "r2n07"]),
        ("[0-2]", ["0", "1", "2"]),
        ("n[5]", ["n5"]),
    ],
)
def test_a_range_stands_for_names(text: str, names: list[str]) -> None:
    assert expanded(text, 100) == names


@pytest.mark.parametrize(
    ("text", "place", "sentence"),
    [
        ("n[1-", 4, "ends with ]"),
        ("n1]", 2, "begins with ["),
        ("n[2-1]", 2, "1 is less than 2"),
        ("n[1,,2]", 4, "expected numbers"),
        ("n[]", 2, "expected numbers"),
        ("n[a-b]", 2, "expected numbers"),
        ("n[1-9999999999]", 2, "expected numbers"),
        ("n[[1-2]]", 2, "expected numbers"),
        ("n[1-999999999][1-999999999]", 0, "at most 100 names"),
    ],
)
def test_a_wrong_range_says_where(text: str, place: int, sentence: str) -> None:
    with pytest.raises(RangeFault, match=re.escape(sentence)) as fault:
        expanded(text, 100)
    assert fault.value.place == place


def test_a_list_of_names_has_ranges_blocks_and_labels() -> None:
    assert language.nodes("n[1-2], @rack[1-2]\n52-54-00-00-00-01 n1 'a b',,") == NodeNames(
        ("n1", "n2", "52-54-00-00-00-01", "a b"), ("rack1", "rack2")
    )
    assert language.nodes(" ") == NodeNames()


# ---------------------------------------------------------------- filters


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("rack=r12", compared("block", "r12", "R12")),
        ("RACK = r12", compared("block", "r12", "R12")),
        ("name != n1", Not(compared("name", "n1", "N1"))),
        ('serial = "B 5"', compared("serial", "B 5", "b 5")),
        ("reason ~ fan", compared("reason", "fan", by="~")),
        ("attempts >= 2", compared("attempts", 2.0, by=">=")),
        ("memory > 64GiB", compared("memory", 64.0 * 2**30, by=">")),
        ("lease < '1 d 12 h'", compared("lease", 129_600.0, by="<")),
        ("quiet = no", compared("quiet", False)),
        ("power in (on, unknown)", compared("power", "on", "unknown")),
        ("state = free", compared("state", "inactive")),
        ("state = starting", compared("state", "trampoline", "boot")),
        ('state not in ("in use", off)', Not(compared("state", "active", "off"))),
        ("mac = 5254.0000.0001", compared("macs", "52:54:00:00:00:01")),
        ("mac ~ 00-0A", compared("macs", "000a", by="~")),
        (
            "address = 10.1.2.3",
            compared("address", AddressRange(ipv4("10.1.2.3"), ipv4("10.1.2.3"))),
        ),
        ("vcluster = none", compared("vcluster", None)),
        ("vcluster = 'none'", compared("vcluster", "none", "NONE")),
        ("since > 2h", compared("since", NOW - 7200, by="<")),
        ("since <= 2h", compared("since", NOW - 7200, by=">=")),
        ("name in (n[1-2], m)", compared("name", "n1", "N1", "n2", "N2", "m", "M")),
        ("fan", word("fan")),
        ("'state = free'", word("state = free")),
        ("@rack1", compared("block", "rack1")),
        ("n[1-2]", compared("name", "n1", "n2")),
        ("a,b", AnyOf((word("a"), word("b")))),
        ("a b and c", AllOf((word("a"), word("b"), word("c")))),
        ("a or b c", AnyOf((word("a"), AllOf((word("b"), word("c")))))),
        ("(a or b) c", AllOf((AnyOf((word("a"), word("b"))), word("c")))),
        ("not a b", AllOf((Not(word("a")), word("b")))),
        ("not not a", Not(Not(word("a")))),
    ],
)
def test_a_filter_is_a_tree(text: str, tree: Filter) -> None:
    assert where(text) == tree


def test_a_moment_is_compared_with_a_date() -> None:
    day = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    assert where("last_seen < 2026-12-01") == compared("last_seen", day, by="<")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "at character 1: expected a field, a word, not or ("),
        ("stat=free", "at character 1: there is no field stat; is state meant? Fields: address,"),
        ("a and 5 = 3", "at character 7 (behind 'a and'): there is no field 5; Fields: "),
        ("rack=", "at character 6 (behind 'rack='): expected a value"),
        ("rack = (", "expected a value, not ("),
        ("rack=r1,r2", "expected and, or, or the end; several values are written FIELD in (a, b)"),
        ("(a", "at character 3 (behind '(a'): expected and, or, or )"),
        ("a)", "at character 2 (behind 'a'): expected and, or, or the end, not )"),
        ("a or", "at character 5 (behind 'a or'): expected a field, a word, not or ("),
        ("and", "at character 1: expected a field, a word, not or (, not and"),
        ("not", "expected a field, a word, not or ("),
        ("name in n1", "expected ( and values with commas between, not n1"),
        ("name in (a b)", "expected , or ), not b"),
        ("x = 'abc", "at character 5 (behind 'x ='): the ' that begins here has no end"),
        ("a && b", "'&' means nothing: write and, or, not, !="),
        ("n[1-", "a range ends with ]"),
        ("name in (n[1-5000], a)", "a list has at most 5,000 names"),
        ("name in (a, n[1-5001])", "a range stands for at most 5,000 names"),
        ("n]", "at character 2 (behind 'n'): a range begins with ["),
        ("n[5-1]", "at character 3 (behind 'n['): 1 is less than 5"),
        ("@", "expected a block's name behind @"),
        ("state = fre", 'state: expected a state: "in use", installing, starting, '),
        ("attempts ~ 3", "attempts is compared by =, !=, <, >, <=, >=, in"),
        ("state < free", "state is compared by =, !=, in"),
        ("attempts > x", "attempts: expected a number, not 'x'"),
        ("watts = nan", "watts: expected a number, not 'nan'"),
        ("watts < 1e999", "watts: expected a number, not '1e999'"),
        ("name ~ n[1-201]", "a filter has at most 200 conditions"),
        ("address in (10.0.[0-1].[1-101])", "a filter has at most 200 conditions"),
        (",".join(["a"] * 201), "a filter has at most 200 conditions"),
        (" ".join(["name=1"] * 201), "a filter has at most 200 conditions"),
        ("memory > big", "memory: should be an amount such as 500 GB or 1.5 TiB, not 'big'"),
        ("since = 2h", "since: expected < or > before a length of time, not '2h'"),
        ("since > soon", "expected how long ago, such as 2h, or a time such as 2026-12-01"),
        ("mac = 52:54", "macs: expected a MAC such as 52:54:00:00:00:01, not '52:54'"),
        ("address = 10.1", "address: expected an address such as 10.1.2.3"),
        ("address ~ 10.1.2.300", "address: expected an address such as 10.1.2.3"),
        ("power = maybe", "power: expected one of on, off, unknown, not 'maybe'"),
        ("quiet = maybe", "quiet: expected yes or no, not 'maybe'"),
    ],
)
def test_a_wrong_filter_says_where_and_what_was_expected(text: str, sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        where(text)
    assert sentence in refused.value.sentence
    assert (refused.value.code, refused.value.field) == ("invalid", "where")


def test_fields_that_are_closed_are_not_there_for_others() -> None:
    closed = {"power_address", "bmc", "power_account", "port"}
    assert closed <= set(node_fields(admin=True))
    assert not closed & set(node_fields(admin=False))
    with pytest.raises(Refused, match="there is no field bmc"):
        language.where("bmc = 10.0.0.1", node_fields(admin=False), NOW)
    tree = language.where("10.0.0.1", node_fields(admin=False), NOW)
    assert isinstance(tree, FreeWord)
    assert not closed & set(tree.fields)


# ---------------------------------------------------------------- hostile input


@pytest.mark.parametrize(
    "text",
    [
        "(" * 3000,
        "not " * 900,
        "a " * 1900,
        "x" * 4001,
        "[" * 4000,
        "n[1-5000] m[1-5000]",
        "n[1-999999999]",
        "name in (" + "n[1-4999]," * 300,
        "'" * 3999,
        "a=" * 1900,
    ],
)
def test_what_is_too_long_or_too_deep_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        where(text)


SIGNS = st.sampled_from([*"()=!~<>,\"'[]@&- .", "and", "or", "not", "in", "n1", "state", "1-3"])


@given(st.one_of(st.text(max_size=60), st.lists(SIGNS, max_size=20).map(" ".join)))
def test_any_text_is_a_tree_or_is_refused(text: str) -> None:
    for read in (where, language.nodes):
        with suppress(Refused):
            read(text)
