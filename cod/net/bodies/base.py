"""What bodies are made of."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from cod.model import LONGEST, Page

DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", description="a DNS label")]
TemplateName = Annotated[str, Field(min_length=1, max_length=80, description="'name' or 'name@revision'")]
Seconds = Annotated[float, Field(gt=0, le=1e10, allow_inf_nan=False)]
Reason = Annotated[str, Field(min_length=1, max_length=1000)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="of the file; checked")]
Xml = Annotated[str, Field(max_length=2**20)]


class Body(BaseModel):
    """A request's body: no unknown keys, no silent conversions (a number is not a string)."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Query(BaseModel):
    """A request's query string: text is converted, unknown names are refused."""

    model_config = ConfigDict(extra="forbid")


class Paged(Query):
    """Which part of a list, in which order. See docs/api.md."""

    limit: int = Field(default=100, ge=1, le=LONGEST, description="items in one answer at most")
    after: str = Field(default="", max_length=600, description="the `next` of the answer before")
    q: str = Field(default="", max_length=100, description="only what has this in a name or a sentence, whatever the "
                   "case")

    @property
    def page(self) -> Page:
        """As flows want it."""
        return Page(self.limit, getattr(self, "sort", ""), self.after, self.q)

    @property
    def filters(self) -> dict[str, Any]:
        """What else is asked for."""
        return self.model_dump(exclude={"limit", "sort", "after", "q"})


class Reply(BaseModel):
    """A reply's body, made from a record's attributes."""

    model_config = ConfigDict(from_attributes=True)


class Part(Reply):
    """A part of a list. `next`: the `after` of the next part, null on the last; `total`: items of all parts, null where
    there are too many to count."""

    next: str | None
    total: int | None
