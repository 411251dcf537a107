"""What people read when a value cannot be: sentences, not pydantic's."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.json_schema import models_json_schema

from cod.model import field_errors
from cod.web.api.calls import checked
from cod.web.api.models import DnsLabel
from cod.web.api.resources import ROUTES
from cod.web.http.errors import HttpProblem
from cod.web.http.request import phrase


class Sample(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: DnsLabel = "a"
    why: str = Field("x", min_length=1, max_length=5)
    count: int = Field(1, ge=1, le=9)
    part: float = Field(0.5, gt=0, lt=1)
    kind: Literal["on", "off"] = "on"
    odd: Annotated[str, Field(pattern="^[xyz]$")] = "x"
    even: int = 2

    @field_validator("even")
    @classmethod
    def _even(cls, number: int) -> int:
        if number % 2:
            raise ValueError("should be even")
        return number


@pytest.mark.parametrize(
    ("values", "field", "said"),
    [
        (
            {"name": "Bad Name"},
            "name",
            (
                "should be lower-case letters, digits and hyphens between them, at most 63, such as"
                " web-2"
            ),
        ),
        ({"why": ""}, "why", "is missing"),
        ({"why": "too long"}, "why", "should be at most 5 characters long"),
        ({"count": 0}, "count", "should be at least 1"),
        ({"count": 10}, "count", "should be at most 9"),
        ({"part": 0}, "part", "should be more than 0"),
        ({"part": 1}, "part", "should be less than 1"),
        ({"kind": "up"}, "kind", "should be 'on' or 'off'"),
        ({"colour": 1}, "colour", "is not known here"),
        ({"even": 3}, "even", "should be even"),
        (
            {"odd": "w"},
            "odd",
            "String should match pattern '^[xyz]$'",
        ),  # nobody has said it better yet
    ],
)
def test_what_is_said(values: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(HttpProblem) as refused:
        checked(Sample, values)
    assert (refused.value.status, refused.value.field, refused.value.detail) == (422, field, said)


def test_what_is_missing() -> None:
    class Needs(BaseModel):
        name: str

    with pytest.raises(HttpProblem, match=r"^is missing$"):
        checked(Needs, {})


def test_every_pattern_of_a_body_is_put_into_words() -> None:
    models = {model for route in ROUTES for model in (route.body, route.query) if model is not None}
    _, schema = models_json_schema([(model, "validation") for model in models])
    assert _patterns(schema) <= set(field_errors.PATTERNS)


def _patterns(value: Any) -> set[str]:
    if isinstance(value, list):
        return {each for part in value for each in _patterns(part)}
    if not isinstance(value, dict):
        return set()
    own = {value["pattern"]} if isinstance(value.get("pattern"), str) else set()
    return own | {each for part in value.values() for each in _patterns(part)}


@pytest.mark.parametrize("example", ["web-2", "ann", "laptop"])
def test_the_examples_are_possible(example: str) -> None:
    pattern = next(
        each for each, said in field_errors.PATTERNS.items() if said.endswith(f"such as {example}")
    )
    assert re.match(pattern, example)


def test_what_statuses_are_called() -> None:
    assert [phrase(status) for status in (404, 460, 299)] == [
        "Not Found",
        "Checksum Mismatch",
        "Unknown",
    ]
    assert "Unknown" not in [phrase(status) for status in (421, 422, 423, 429, 507)]


def test_pydantic_still_says_what_is_translated() -> None:
    """Know each type of pydantic's errors: one that is renamed would be shown in pydantic's
    words."""
    with pytest.raises(ValidationError) as refused:
        Sample.model_validate({"name": "Bad", "why": "", "count": 0, "part": 1, "kind": "", "x": 1})
    assert {each["type"] for each in refused.value.errors()} <= set(field_errors._SENTENCES)
