"""What bodies are made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

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


class Reply(BaseModel):
    """A reply's body, made from a record's attributes."""

    model_config = ConfigDict(from_attributes=True)
