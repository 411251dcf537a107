"""What is typed into forms becomes bodies of the API; how values look; addresses of pages."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from cod.quantity import read_span
from cod.web.api.calls import checked
from cod.web.api.models import Body
from cod.web.api.resources.groups import GroupPatch
from cod.web.api.resources.requests import RequestSubmit
from cod.web.api.resources.vclusters import VclusterCreate
from cod.web.http.errors import HttpProblem
from cod.web.portal import formatting, links, nav
from cod.web.portal.assets import Assets
from cod.web.portal.forms import Fields, Form, body_of

KIND = "application/x-www-form-urlencoded; charset=utf-8"


class Part(Body):
    """Within a list."""

    count: int
    note: str = ""


class Wanted(Body):
    """One of each kind of field."""

    name: str = Field(min_length=1)
    size: int = Field(ge=1)
    share: float | None = None
    marks: int = 4
    fast: bool = False
    nodes: list[str] = Field(default=[])
    parts: list[Part] = Field(default=[])
    about: str = "none"


def made(text: str, **convert: Any) -> dict[str, Any]:
    return body_of(Wanted, Fields.read(text.encode(), KIND), convert)


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("name=a&size=3", {"name": "a", "size": 3}),
        ("name=+a+&size=+3+&share=0.5", {"name": " a ", "size": 3, "share": 0.5}),
        ("name=a&size=3&share=&marks=", {"name": "a", "size": 3, "share": None}),
        ("name=&size=", {"name": "", "size": ""}),
        ("name=a&size=three", {"name": "a", "size": "three"}),
        ("name=a&size=1&boxes=fast", {"name": "a", "size": 1, "fast": False}),
        ("name=a&size=1&boxes=fast&fast=true", {"name": "a", "size": 1, "fast": True}),
        ("name=a&size=1&nodes=n1&nodes=n2", {"name": "a", "size": 1, "nodes": ["n1", "n2"]}),
        ("name=a&size=1&nodes=n1%0D%0A%0D%0A+n2+", {"name": "a", "size": 1, "nodes": ["n1", "n2"]}),
        (
            "name=a&size=1&parts.1.count=2&parts.0.count=7&parts.0.note=x",
            {"name": "a", "size": 1, "parts": [{"count": 7, "note": "x"}, {"count": 2}]},
        ),
        ("name=%C3%A9&size=1&about=", {"name": "é", "size": 1, "about": ""}),
        ("name=a&size=1&csrf=x&once=y", {"name": "a", "size": 1}),
    ],
)
def test_fields_become_a_body(text: str, body: dict[str, Any]) -> None:
    assert made(text) == body


def test_what_the_model_refuses_is_said_for_every_field() -> None:
    with pytest.raises(HttpProblem) as caught:
        checked(Wanted, made("name=&size=0&share=much&parts.0.note=x&colour=red"))
    assert caught.value.faults.keys() == {"name", "size", "share", "parts.0.count", "colour"}
    assert caught.value.field == "name"


def test_what_a_field_is_converted_by_says_what_it_should_be() -> None:
    assert made("name=a&size=1h", size=read_span) == {"name": "a", "size": 3600.0}
    with pytest.raises(HttpProblem, match="length of time") as caught:
        made("name=a&size=soon", size=read_span)
    assert caught.value.faults.keys() == {"size"}


@given(
    st.dictionaries(
        st.text(max_size=8)
        | st.from_regex(r"(parts|nodes|a)(\.[0-9²a]{1,5000}){0,12}", fullmatch=True),
        st.lists(st.text(max_size=20), min_size=1, max_size=3),
        max_size=6,
    )
)
def test_nothing_that_is_sent_is_a_bug(values: dict[str, list[str]]) -> None:
    for model in (Wanted, VclusterCreate, RequestSubmit, GroupPatch):
        with suppress(HttpProblem):
            checked(model, body_of(model, Fields(values), {}))


def test_a_form_shows_what_was_typed_and_whatever_no_field_shows() -> None:
    form = Form(
        "/x",
        "token",
        "key",
        Fields({"name": ["typed"], "box": ["true"]}),
        {"name": "wrong", "": "whole"},
    )
    assert form.value("name", "old") == "typed"
    assert form.value("other", "old") == ""
    assert form.ticked("box", "true")
    assert form.error("name") == "wrong"
    assert form.unshown() == ["whole"]
    fresh = Form("/x", "token", "key")
    assert (
        fresh.value("name", 3),
        fresh.value("name", None),
        fresh.ticked("box", "true", True),
    ) == ("3", "", True)


# ---------------------------------------------------------------- how values look


@pytest.mark.parametrize(
    ("off", "text"),
    [
        (0, "now"),
        (-5, "5 s ago"),
        (90, "in 1 min 30 s"),
        (-3600 * 26, "1 d 2 h ago"),
        (900.4, "in 15 min"),
    ],
)
def test_times_are_as_far_as_they_are(off: float, text: str) -> None:
    assert f">{text}</time>" in formatting.when(1e9 + off, 1e9)


def test_values() -> None:
    assert formatting.when(None, 0) == formatting.duration(None) == formatting.NONE
    assert [formatting.duration(each) for each in (0, 59.6, 3600, 93600, 172799)] == [
        "0 s",
        "1 min",
        "1 h",
        "1 d 2 h",
        "1 d 23 h",
    ]
    assert [formatting.size(each) for each in (0, 1023, 1536, 5 * 2**30, 2**60)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
        "1024.0 PiB",
    ]
    assert [formatting.percent(*each) for each in ((0, 0), (1, 3), (5, 3), (-1, 3))] == [
        0,
        33,
        100,
        0,
    ]
    assert [
        formatting.count(1, "node"),
        formatting.count(12000, "node"),
        formatting.count(2, "entry", "entries"),
    ] == ["1 node", "12,000 nodes", "2 entries"]


# ---------------------------------------------------------------- addresses, navigation, assets


def test_addresses_are_quoted() -> None:
    assert (
        links.url("vclusters", "a/b?c", sort="x y", after=None, q="")
        == "/vclusters/a%2Fb%3Fc?sort=x+y"
    )
    assert links.url() == "/"
    assert (
        links.changed("/a b", "sort=x&part=y&after=3", after=None, q="ü")
        == "/a%20b?sort=x&q=%C3%BC"
    )
    assert links.fill("/groups/{name}/x", {"name": "a/b"}) == "/groups/a%2Fb/x"


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("/", True),
        ("/a/b?c=d", True),
        ("//evil", False),
        ("/\\evil", False),
        ("https://evil", False),
        ("a", False),
        ("", False),
        ("/a\nb", False),
        ("/a b", False),
        ("javascript:x", False),
    ],
)
def test_paths_of_this_site(path: str, local: bool) -> None:
    assert links.is_local(path) is local


def test_the_navigation_is_for_whom_it_is_for() -> None:
    served = ["/", "/vclusters", "/nodes", "/audit"]
    owner = nav.entries(served, admin=False)
    assert [entry.path for _, part in owner for entry in part] == ["/", "/vclusters"]
    assert "/nodes" in [entry.path for _, part in nav.entries(served, admin=True) for entry in part]
    clusters = nav.entries([*served, "/requests"], admin=False)[0][1][1]
    assert clusters.paths == ("/vclusters", "/requests")


def test_an_assets_name_is_of_its_content(tmp_path: Any) -> None:
    (tmp_path / "a.css").write_text("body{}" * 100)
    (tmp_path / "notes.txt").write_text("not served")
    assets = Assets(tmp_path)
    path = assets.paths["a.css"]
    (tmp_path / "a.css").write_text("other")
    assert Assets(tmp_path).paths["a.css"] != path
    found = assets.get(path.removeprefix("/assets/"))
    assert found is not None
    assert 0 < len(found.packed) < len(found.content)
    assert assets.get("notes.txt") is assets.get("a.css") is None
    assert "notes.txt" not in assets.paths
