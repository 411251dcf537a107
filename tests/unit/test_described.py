"""Described records: what is written at a field is what every door shows."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from io import StringIO
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner
from sqlalchemy import Table

from cod.cli.output import Output, choose
from cod.cli.record_fields import (
    Show,
    body_of,
    facts,
    fields_table,
    lists,
    options_named,
    set_options,
)
from cod.cli.show import _plain
from cod.model import (
    About,
    AskedVcluster,
    FieldKind,
    FieldLevel,
    Group,
    Image,
    Node,
    NodeType,
    NodeView,
    Request,
    Right,
    Template,
    Undescribed,
    User,
    Vcluster,
    Volume,
    described,
    set_by,
)
from cod.store import tables as t
from cod.web.api.models import CreateOf, PatchOf, Reply, ReplyOf
from cod.web.api.resources.groups import GroupCreate, GroupPatch, GroupReply
from cod.web.api.resources.network.switches import PortReply, SwitchReply
from cod.web.api.resources.nodes import NodePatch, NodeReply, Power
from cod.web.api.resources.people import UserReply
from cod.web.api.resources.requests import RequestReply
from cod.web.api.resources.series import SeriesCreate
from cod.web.api.resources.vclusters import VclusterCreate
from cod.web.http.errors import HttpProblem
from cod.web.portal.forms import Fields
from cod.web.portal.record_fields import body_by, columns_of, facts_of, settings_of


@dataclass(frozen=True)
class Shelf:
    """A described record with a field of each kind."""

    id: Undescribed[int]
    name: Annotated[str, About("Name")]
    depth: Annotated[
        int, About("Depth", FieldKind.NUMBER, "how deep", set_by=Right.ADMIN, least=1, most=9)
    ] = 3
    rest: Annotated[
        float | None,
        About(
            "Rest", FieldKind.SPAN, "how long", none="no rest", example="2h", set_by=Right.MANAGE
        ),
    ] = None
    room: Annotated[
        int | None,
        About("Room", FieldKind.SIZE, none="any", set_by=Right.ADMIN, level=FieldLevel.WIDE),
    ] = None
    since: Annotated[float | None, About("Since", FieldKind.MOMENT, level=FieldLevel.DETAIL)] = None
    wood: Annotated[
        Literal["oak", "pine"] | None,
        About("Wood", FieldKind.CHOICE, none="any", set_by=Right.MANAGE),
    ] = None
    open: Annotated[bool, About("Open", FieldKind.FLAG)] = False
    owner: Annotated[str | None, About("Owner", FieldKind.LINK, place="users")] = None
    price: Annotated[int, About("Price", FieldKind.NUMBER, closed=True)] = 7
    shut: Annotated[
        bool, About("Shut", FieldKind.FLAG, set_by=Right.ADMIN, level=FieldLevel.DETAIL)
    ] = False
    note: Annotated[
        str, About("Note", about="a note", none="no note", set_by=Right.ADMIN, longest=5)
    ] = ""

    @property
    def colors(
        self,
    ) -> Annotated[
        tuple[Literal["red", "blue"], ...],
        About("Colors", FieldKind.CHOICE, set_by=Right.MANAGE, longest=2),
    ]:
        """Colors."""
        return ("red",)


class ShelfReply(ReplyOf[Shelf]):
    """A shelf."""


class ShelfCreate(CreateOf[Shelf]):
    """A new shelf."""

    defaults = {"colors": ["blue"]}  # noqa: RUF012
    name: str


class ShelfPatch(PatchOf[Shelf]):
    """What to change of a shelf."""


SHELF = Shelf(
    1, "a", rest=9000.0, room=5 * 2**28, since=1e6, wood="oak", open=True, owner="ann", note="n"
)
VALUE = ShelfReply.of(SHELF).model_dump(mode="json")


# columns that only the store reads, and fields that are rows of another table
ELSEWHERE: dict[Any, set[str]] = {
    Vcluster: {"live_name", "user_id"},
    Request: {"key", "tuples"},
    NodeType: {"product"},
}


def test_a_field_that_is_forgotten_is_refused() -> None:
    @dataclass
    class Forgetful:
        name: Annotated[str, About("Name")]
        size: int

    Forgetful.__annotations__ = {"name": Annotated[str, About("Name")], "size": int}
    with pytest.raises(TypeError, match=r"Forgetful\.size: neither described nor Undescribed"):
        described(Forgetful)


@pytest.mark.parametrize(
    ("record", "table"),
    [
        (Group, t.groups),
        (Image, t.images),
        (Template, t.config_templates),
        (Volume, t.volumes),
        (Node, t.nodes),
        (NodeType, t.node_types),
        (Vcluster, t.vclusters),
        (Request, t.node_requests),
    ],
)
def test_each_column_is_a_field(record: Any, table: Table) -> None:
    elsewhere = ELSEWHERE.get(record, set())
    columns = {column.name for column in table.columns}
    assert columns ^ elsewhere == {each.name for each in fields(record)}


def test_replies_and_bodies_have_what_the_record_describes() -> None:
    """But what a reply has in a part of its own."""
    for record, reply, patch in (
        (Group, GroupReply, GroupPatch),
        (NodeView, NodeReply, NodePatch),
        (Shelf, ShelfReply, ShelfPatch),
    ):
        names = {each.name for each in described(record) if not each.about.part}
        assert names <= set(reply.model_fields)
        assert {each.name for each in described(record) if each.about.set_by} <= set(
            patch.model_fields
        )
    assert set(GroupPatch.model_fields) == set_by(Group, Right.ADMIN) | set_by(Group, Right.MANAGE)
    assert set(GroupCreate.model_fields) == {"name", *GroupPatch.model_fields}
    assert VALUE["rest"] == 9000.0
    assert VALUE["colors"] == ["red"]
    assert "id" not in VALUE


def test_what_is_closed_others_do_not_see() -> None:
    reply: Any = ShelfReply.of(SHELF)
    assert (reply.price, reply.for_others().price) == (7, None)


def test_a_new_thing_has_the_records_defaults() -> None:
    made = ShelfCreate(name="b").model_dump()
    assert made["depth"] == 3
    assert made["colors"] == ["blue"]
    assert "since" not in made
    assert "open" not in made


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ({}, "names nothing to change"),
        ({"depth": None}, "depth cannot be null"),
        ({"note": None}, "note cannot be null"),
        ({"depth": 10}, "less than or equal to 9"),
        ({"rest": 0.0}, "greater than 0"),
        ({"note": "longer"}, "at most 5"),
        ({"wood": "elm"}, "'oak' or 'pine'"),
        ({"name": "b"}, "Extra inputs"),
        ({"colors": ["red", "blue", "red"]}, "at most 2"),
        ({"rest": None, "wood": None, "room": None, "note": ""}, ""),
    ],
)
def test_bounds_and_nulls_are_those_of_the_record(body: dict[str, Any], wrong: str) -> None:
    if wrong:
        with pytest.raises(ValueError, match=wrong):
            ShelfPatch.model_validate(body)
    else:
        assert ShelfPatch.model_validate(body).model_dump(exclude_unset=True) == body


def test_the_document_says_label_kind_and_order() -> None:
    about = ShelfReply.model_json_schema()["properties"]
    assert about["rest"] == {
        "anyOf": [{"type": "number"}, {"type": "null"}],
        "title": "Rest",
        "description": "how long, in seconds; null: no rest",
        "x-label": "Rest",
        "x-kind": "span",
        "x-order": 2,
    }
    assert about["note"]["description"] == "a note; '': no note"
    assert ShelfPatch.model_json_schema()["properties"]["depth"]["anyOf"][0] == {
        "maximum": 9,
        "minimum": 1,
        "type": "integer",
    }


@contextmanager
def asked(of_output: Output) -> Iterator[None]:
    """A command that runs and was asked for this output."""
    with click.Context(click.Command("list")) as ctx:
        choose(ctx, of_output, as_json=False)
        yield


def as_csv(values: list[Any], columns: Any = ()) -> str:
    return fields_table(Shelf, values, columns).csv()


def test_a_table_has_a_column_for_each_field_that_lists_show() -> None:
    def lines(*columns: Any, wide: bool = False) -> list[list[str]]:
        with asked(Output("wide" if wide else "table")):
            made = _plain(fields_table(Shelf, [VALUE], columns))
        return [line.split() for line in made.splitlines()]

    assert lines() == [
        ["NAME", "DEPTH", "REST", "WOOD", "OPEN", "OWNER", "PRICE", "NOTE", "COLORS"],
        ["a", "3", "2", "h", "30", "min", "oak", "yes", "ann", "7", "n", "red"],
    ]
    assert "1.2 GiB" in " ".join(lines(wide=True)[1])
    by_hand = lines("owner", ("name", lambda one: one["name"] * 2), ("Extra", lambda one: 0.5))
    assert by_hand[0][:4] == ["OWNER", "NAME", "EXTRA", "DEPTH"]
    assert by_hand[1][:3] == ["ann", "aa", "0.5"]
    told = dict(facts(Shelf, VALUE | {"rest": None}))
    assert told["Rest"] == "no rest"
    assert "Since" in told


def test_a_list_for_spreadsheets_has_all_fields_with_their_exact_values() -> None:
    columns = (("open", lambda one: "wide open"), ("Extra", lambda one: "a, b"))
    head, line = list(csv.reader(as_csv([VALUE], columns).splitlines()))
    told = dict(zip(head, line, strict=True))
    assert head[:4] == ["Open", "Extra", "Name", "Depth"]
    assert (told["Open"], told["Extra"], told["Colors"]) == ("True", "a, b", "red")
    assert (told["Rest"], told["Room"]) == ("9000.0", str(5 * 2**28))
    assert (told["Since"], told["Owner"]) == ("1970-01-12T13:46:40+00:00", "ann")
    assert as_csv([VALUE | {"rest": None}]).splitlines()[1].startswith("a,3,,")


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("@a", "'@a"),
        ("\t-1+1", "'\t-1+1"),
        ("a\rb\0c\x1b[2J", "a b c [2J"),
        ('a\nb, "c"', 'a\nb, "c"'),
    ],
)
def test_a_cell_of_a_spreadsheet_is_no_formula_and_no_command(text: str, cell: str) -> None:
    made = StringIO(as_csv([VALUE | {"note": text, "depth": -3}]), newline="")
    head, line = list(csv.reader(made))
    told = dict(zip(head, line, strict=True))
    assert (told["Note"], told["Depth"]) == (cell, "-3")


def test_a_command_that_lists_has_the_options_of_lists() -> None:
    @click.command()
    @click.option("--color")
    @lists(Shelf)
    def list_(ctx: click.Context, show: Show, color: str) -> None:
        show(lambda: [VALUE, VALUE | {"name": color, "depth": 1}], ("name",))

    def said(*words: str) -> str:
        return CliRunner().invoke(list_, ["--color", "b", *words]).output

    assert [line.split()[0] for line in said("--sort", "depth").splitlines()] == ["NAME", "b", "a"]
    assert "ROOM" in said("-o", "wide")
    assert said("-o", "csv", "--sort", "-depth").splitlines()[1].startswith("a,3,9000.0,")
    assert [one["name"] for one in json.loads(said("--json"))] == ["a", "b"]
    assert "--watch" not in said("--help")
    assert "--json goes not with -o csv" in said("-o", "csv", "--json")


def test_options_set_what_people_set() -> None:
    found: dict[str, Any] = {}

    @click.command()
    @set_options(Shelf)
    def change(**asked: Any) -> None:
        found.update(body_of(Shelf, asked))

    words = [
        "--rest",
        "none",
        "--depth",
        "4",
        "--wood",
        "none",
        "--note",
        "none",
        "--colors",
        "red",
    ]
    assert CliRunner().invoke(change, words).exit_code == 0
    assert found == {"rest": None, "depth": 4, "wood": None, "note": "none", "colors": ["red"]}
    assert CliRunner().invoke(change, ["--depth", "none"]).exit_code == 2
    for option, value in (("--shut", True), ("--no-shut", False)):
        found.clear()
        assert CliRunner().invoke(change, [option]).exit_code == 0
        assert found == {"shut": value}
    help_ = " ".join(CliRunner().invoke(change, ["--help"]).output.split())
    assert "How long, such as 2h; none: no rest." in help_
    assert "A note; '': no note." in help_
    assert options_named(Shelf, "--more").startswith("--depth, --rest")
    assert options_named(Shelf, "--more").endswith(" or --more")


def test_the_options_of_a_new_thing_have_the_apis_defaults() -> None:
    @click.command()
    @set_options(Shelf, new=True)
    def create(**asked: Any) -> None:
        click.echo(str(body_of(Shelf, asked)))

    assert CliRunner().invoke(create).output == "{}\n"
    assert CliRunner().invoke(create, ["--wood", "none"]).exit_code == 2
    assert "[default: no rest]" in " ".join(CliRunner().invoke(create, ["--help"]).output.split())


def test_a_page_has_the_facts_and_the_form() -> None:
    told = dict(facts_of(SHELF, 1e6 + 60, without=("open",), words={"depth": "deep"}))
    assert told["Depth"] == "deep"
    assert told["Rest"] == "2 h 30 min"
    assert "1 min ago" in told["Since"]
    assert told["Owner"] == '<a href="/users/ann">ann</a>'
    assert {"Open", "Price"}.isdisjoint(told)
    assert dict(facts_of(Shelf(2, "b"), 0.0))["Wood"] == "any"
    assert "Price" in dict(facts_of(SHELF, 0.0, admin=True))

    def table(*, admin: bool) -> dict[str, Any]:
        ask: Any = SimpleNamespace(who=SimpleNamespace(admin=admin), now=0.0)
        found = columns_of(Shelf, ask, without=("open",))
        assert found.heads == [label for label, _ in found.cells(SHELF)]
        return dict(found.cells(SHELF))

    assert table(admin=False).keys() == {"Name", "Depth", "Rest", "Wood", "Owner", "Note", "Colors"}
    assert table(admin=True).keys() - table(admin=False) == {"Price"}

    rest, wood, colors = settings_of(SHELF, Right.MANAGE, none={"rest": "a day"})
    assert (rest.value, rest.help) == ("2 h 30 min", "How long, such as 2h. Empty: a day.")
    assert [value for value, _ in wood.options] == ["", "oak", "pine"]
    assert (colors.value, colors.several) == (("red",), True)


def test_the_package_has_the_function_whatever_was_read_first() -> None:
    program = "import cod.model.described; from cod.model import described; described(int)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_fields_of_a_part_are_closed_as_its_reply_says() -> None:
    own = {each.name: each.about.closed for each in described(NodeView) if each.about.part}
    assert own == {
        f"power_{name}": name in Power.closed for name in ("driver", "address", "account")
    }


def test_what_is_not_told_is_not_said_to_be_none() -> None:
    user = User(1, "ann", "", "", 0.0, None, False, "", None, signed_in_at=1e6)
    told = UserReply.of(user)
    assert dict(facts(User, told.model_dump(mode="json")))["Signed in"]
    hidden = told.for_others().model_dump(mode="json")
    assert dict(facts(User, hidden))["Signed in"] is None


@dataclass(frozen=True)
class Alarm:
    """A described record with a moment that people set."""

    at: Annotated[float | None, About("At", FieldKind.MOMENT, none="never", set_by=Right.ADMIN)] = (
        None
    )


class AlarmPatch(PatchOf[Alarm]):
    """What to change of an alarm."""


@pytest.mark.parametrize("at", [-1.0, 1e12, 1e300])
def test_a_moment_whose_date_cannot_be_written_is_refused(at: float) -> None:
    assert AlarmPatch.model_validate({"at": 1e9}).model_dump() == {"at": 1e9}
    with pytest.raises(ValueError, match="than or equal to"):
        AlarmPatch.model_validate({"at": at})


def test_a_form_shows_all_digits_that_it_would_set() -> None:
    @dataclass(frozen=True)
    class Lamp:
        watts: Annotated[float, About("Watts", FieldKind.NUMBER, set_by=Right.ADMIN)]

    for watts, typed in ((0.1, "0.1"), (1234567.0, "1234567"), (123456.789, "123456.789")):
        assert [one.value for one in settings_of(Lamp(watts), Right.ADMIN)] == [typed]


def test_a_form_sets_what_it_has() -> None:
    sent = Fields({"rest": ["2h30m"], "wood": [""], "colors": ["blue", "red"]})
    assert body_by(Shelf, Right.MANAGE, sent) == {
        "rest": 9000.0,
        "wood": None,
        "colors": ["blue", "red"],
    }
    sent = Fields({"depth": ["deep"], "room": ["1.5 TiB"], "note": [""]})
    assert body_by(Shelf, Right.ADMIN, sent) == {
        "depth": "deep",
        "room": 3 * 2**39,
        "note": "",
    }
    assert body_by(Shelf, Right.ADMIN, Fields({"depth": [""]})) == {}
    assert body_by(Shelf, Right.ADMIN, Fields({"boxes": ["shut"]})) == {"shut": False}
    assert body_by(Shelf, Right.ADMIN, Fields({"boxes": ["shut"], "shut": ["true"]})) == {
        "shut": True
    }
    with pytest.raises(HttpProblem, match="length of time"):
        body_by(Shelf, Right.MANAGE, Fields({"rest": ["long"]}))


def test_a_reply_is_read_from_several_sources() -> None:
    class Both(Reply):
        name: str
        depth: int
        wood: str | None

    class Named:
        name = "first"

    made = Both.read_from(Named(), SHELF, wood="pine")
    assert made == Both(name="first", depth=3, wood="pine")
    with pytest.raises(ValueError, match="depth"):
        Both.read_from(Named(), wood=None)


def test_requests_switches_and_what_is_asked_for_are_described() -> None:
    for model, name, label, kind in (
        (RequestReply, "duration", "Lasts", "span"),
        (SwitchReply, "answered_at", "Answered", "moment"),
        (PortReply, "wanted_vlan", "Wanted", "number"),
        (VclusterCreate, "preemptible", "Preemptible", "flag"),
        (SeriesCreate, "homes", "Homes", "flag"),
    ):
        about = model.model_json_schema()["properties"][name]
        assert (about["x-label"], about["x-kind"]) == (label, kind)
    defs = SwitchReply.model_json_schema()["$defs"]
    assert defs["SwitchDriverKind"]["enum"] == ["ovs", "snmp", "netmiko"]
    assert set(VclusterCreate(name="a", size=1, template="t").model_dump()) == {
        *(each.name for each in fields(AskedVcluster) if each.name != "mounts"),
        *("volumes", "ends_at", "vcm_inside"),
    }
