"""docs/api names every error code that there is, and the API's document says of every route who
may use it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cod.web.api import openapi
from cod.web.api.openapi_texts import ERRORS, EXAMPLES, TAGS
from cod.web.api.resources import ROUTES
from cod.web.api.routes import CLAIMS, Route
from cod.web.http import errors
from cod.web.http.request import PREFIX
from tests.manual import page

ROOT = Path(__file__).resolve().parents[2]
PAGE = page("api").read_text()


def codes() -> set[tuple[str, str]]:
    """(status, code) of what is raised in the API's modules."""
    raised = {
        pair
        for path in (ROOT / "cod").rglob("*.py")
        if "portal" not in path.parts
        for pair in re.findall(r'\bHttpProblem\((\d{3}), "([a-z_]+)"', path.read_text())
    }
    assert raised, "the exception has another name now"
    return raised | {(str(status), code) for code, status in errors.STATUS.items()}


def test_every_code_is_on_the_page() -> None:
    lines = [line.split("|") for line in PAGE.splitlines() if re.match(r"\| \d{3} \|", line)]
    listed = {
        (line[1].strip(), code) for line in lines for code in re.findall(r"`([a-z_]+)`", line[2])
    }
    assert codes() - listed == set()
    assert {status for status, _ in listed} - {"423", "507"} == set(ERRORS)


def test_every_status_is_in_the_document() -> None:
    document = openapi.document()
    assert {status for status, _ in codes()} - {"423", "507"} <= set(
        document["components"]["responses"]
    )
    assert {path.split("/")[3] for path in document["paths"]} == set(TAGS)
    assert set(EXAMPLES) <= set(document["components"]["schemas"])


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_who_may_is_said_in_words(route: Route) -> None:
    operation = openapi.document()["paths"][PREFIX + route.path][route.method.lower()]
    assert route.open or (route.claims.__doc__ or "").startswith(CLAIMS), "the document shows it"
    assert len(operation["description"]) > len("Rights: ") + 10
    assert "  " not in operation["description"]
    names = {one["name"] for one in operation["parameters"]}
    if (
        "items" in getattr(route.reply, "model_fields", {})
        and route.query is not None
        and route.method == "GET"
    ):
        assert names >= {"limit", "after", "sort", "q"} or "by" in names, "lists are alike"
    assert ("If-None-Match" in names) == (route.method == "GET" or "If-Match" in names)
