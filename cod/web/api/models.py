"""Base classes and field types of bodies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SecretStr,
    ValidationError,
    model_validator,
)

from cod.model import DNS_LABEL, LONGEST, Page, described, field_error
from cod.model.names import ONE_LINE
from cod.web.api.record_fields import add_all, add_to_body, add_to_reply, record_of
from cod.wire import xmldoc

T = TypeVar("T")
R = TypeVar("R", bound=BaseModel)
DnsLabel = Annotated[str, Field(pattern=f"^{DNS_LABEL}$", description="a DNS label")]
FULL = 127  # characters of GROUP/NAME
REVISION = FULL + 17  # characters of GROUP/NAME@REVISION
TemplateName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=REVISION,
        description=(
            "'name' or 'name@revision'; a bare "
            "name is the group's own template, or else the site's; 'site/name' is the site's"
        ),
    ),
]
OwnName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=FULL,
        description=(
            "for a group, bare or in full: 'debian' and "
            "'physics/debian' are the same for group physics"
        ),
    ),
]
Seconds = Annotated[float, Field(gt=0, le=1e10, allow_inf_nan=False)]
Reason = Annotated[str, Field(min_length=1, max_length=1000)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="of the file; checked")]


def _safe(document: str) -> str:
    """Return the requirements document if it is well-formed and safe to parse. Raises ValueError
    with the line of the fault.

    The flows check requirements by `policy.hardware.requirements`, which is stricter than their
    grammar and names the attribute at fault.
    """
    if document:
        try:
            xmldoc.well_formed(document.encode(), "requires")
        except xmldoc.BadDocument as fault:
            raise ValueError(str(fault)) from None
    return document


Requirements = Annotated[str, Field(max_length=2**20), AfterValidator(_safe)]


@dataclass(frozen=True)
class OneOrSeveral:
    """A filter by state or kind: 'off', or 'off,inactive'. An unknown name is refused, because an
    empty list would be a misleading answer to a typing error. The OpenAPI document shows the filter
    as a list with commas between its items."""

    states: Collection[str]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Return the text's schema, followed by the check of its names."""
        return handler.generate_schema(Annotated[source, AfterValidator(self._known)])

    def __get_pydantic_json_schema__(
        self, schema: Any, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the schema that the OpenAPI document shows."""
        return {"type": "array", "items": {"type": "string", "enum": list(self.states)}}

    def _known(self, text: str | None) -> str | None:
        if text and not {each.strip() for each in text.split(",") if each.strip()} <= set(
            self.states
        ):
            raise ValueError(
                f"should be {', '.join(self.states)}, or several of them with commas between"
            )
        return text


def faults_of(error: ValidationError) -> dict[str, str]:
    """Return the first fault of each field, by its path with dots."""
    faults: dict[str, str] = {}
    for each in error.errors(include_url=False, include_input=False):
        faults.setdefault(".".join(map(str, each["loc"])), field_error(each))
    return faults


class Body(BaseModel):
    """A request's body: no unknown keys, no silent conversions (a number is not a string)."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


class CreateOf(Body, Generic[T]):
    """The body that creates a thing: the fields of a described `T` that people may set. A field
    that is left out gets its value in `defaults`, or else the record's default."""

    defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Add the fields of the record."""
        super().__init_subclass__(**options)
        if record := record_of(cls):
            add_to_body(cls, described(record), cls.defaults)


class Patch(Body):
    """Changes to a thing. A field that is left out stays as it is.

    null_stays   a field that is null stays as it is, too; else null is refused for all fields but
                 those in `may_be_null`
    beside       fields that are no changes by themselves
    may_be_empty whether a body without any change is accepted
    """

    null_stays: ClassVar[bool] = False
    may_be_null: ClassVar[frozenset[str]] = frozenset()
    beside: ClassVar[frozenset[str]] = frozenset()
    may_be_empty: ClassVar[bool] = False

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.may_be_empty and not self.model_fields_set - self.beside:
            raise ValueError("names nothing to change")
        for name in () if self.null_stays else type(self).model_fields:
            if name in self.model_fields_set - self.may_be_null and getattr(self, name) is None:
                raise ValueError(f"{name} cannot be null")
        return self


class PatchOf(Patch, Generic[T]):
    """Changes to a described `T`."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Add the fields of the record."""
        super().__init_subclass__(**options)
        if record := record_of(cls):
            fields = described(record)
            add_to_body(cls, fields, None)
            cls.may_be_null = frozenset(each.name for each in fields if each.clears)


class Query(BaseModel):
    """A request's query string: text is converted, unknown names are refused."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class Filtered(Query):
    """A query string with filters, for a list of which a part is wanted."""

    @property
    def filters(self) -> dict[str, Any]:
        """Return the filters of a list's query: all its fields but those that choose its page, its
        order and its search text."""
        return self.model_dump(exclude={"limit", "sort", "after", "q"})


class Nothing(Body):
    """The body of a request that carries no data."""


class NoQuery(Query):
    """The query string of a request that takes no parameters."""


class Paged(Filtered):
    """Selection and order of one page of a list. See docs/api."""

    limit: int = Field(default=100, ge=1, le=LONGEST, description="items in one answer at most")
    after: str = Field(default="", max_length=600, description="the `next` of the answer before")
    q: str = Field(
        default="",
        max_length=REVISION,
        description="only what has this in a name or a sentence, whatever the case",
    )

    @property
    def page(self) -> Page:
        """Return the page in the form that flows take."""
        return Page(self.limit, getattr(self, "sort", ""), self.after, self.q)


class Reply(BaseModel):
    """A reply's body, made from a record's attributes. `closed` names the fields that only
    administrators see; others get null in their place."""

    model_config = ConfigDict(from_attributes=True, defer_build=True)
    closed: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def read_from(cls, *sources: object, **own: Any) -> Self:
        """Return a reply. A field in `own` has the value given there. Any other field has the value
        of the attribute with its name, from the first of the `sources` that has this attribute."""
        for name in cls.model_fields.keys() - own.keys():
            for source in sources:
                if hasattr(source, name):
                    own[name] = getattr(source, name)
                    break
        return cls.model_validate(own)

    def for_others(self) -> Self:
        """Return the reply as people who are not administrators see it, nested replies included."""
        parts = {name: _for_others(getattr(self, name)) for name in _with_closed(type(self))}
        return (
            self.model_copy(update=parts | dict.fromkeys(self.closed))
            if parts or self.closed
            else self
        )


def _for_others(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_for_others(each) for each in value]
    return value.for_others() if isinstance(value, Reply) else value


@cache
def _with_closed(model: type[Reply]) -> frozenset[str]:
    """Return the fields whose values are, or contain, replies with closed fields."""
    return frozenset(
        name
        for name, field in model.model_fields.items()
        if any(each.closed or _with_closed(each) for each in _replies(field.annotation))
    )


def _replies(annotation: Any) -> Iterator[type[Reply]]:
    if isinstance(annotation, type) and issubclass(annotation, Reply):
        yield annotation
    for part in get_args(annotation):
        yield from _replies(part)


class ReplyOf(Reply, Generic[T]):
    """A reply made from the attributes, or the keys, of a `T`. If `T` is a described record, its
    described fields are added, and need not be declared here again.

    whole  the reply has all fields of the record; only those whose types differ are declared here
    """

    described: ClassVar[tuple[str, ...]] = ()
    read: ClassVar[Callable[[Any], tuple[Any, ...]]]

    def __init_subclass__(cls, *, whole: bool = False, **options: Any) -> None:
        """Add the fields of the record."""
        super().__init_subclass__(**options)
        if whole:
            add_all(cls)
        elif record := record_of(cls):
            fields = [each for each in described(record) if not each.about.part]
            add_to_reply(cls, fields)
            cls.closed |= {each.name for each in fields if each.about.closed}
            cls.described = tuple(each.name for each in fields)
            paths = [each.path for each in fields]
            cls.read = attrgetter(*paths, paths[0])  # with two or more paths it returns a tuple

    @classmethod
    def of(cls, record: T, /) -> Self:
        """Return the reply for the record: its described values, and its attributes that have the
        names of other fields of the reply."""
        if not cls.described:
            return cls.model_validate(record)
        values = cls.values(record)
        others = cls.model_fields.keys() - values.keys()
        return cls.model_validate(
            values | {name: getattr(record, name) for name in others if hasattr(record, name)}
        )

    @classmethod
    def values(cls, record: T, /) -> dict[str, Any]:
        """Return the values of a described record's fields."""
        return dict(zip(cls.described, cls.read(record), strict=False))


class Items(Reply, Generic[R]):
    """A list."""

    items: list[R]


class ListPage(Items[R], Generic[R]):
    """A part of a list. `next`: the `after` of the next part, null for the last part; `total`:
    items of all parts, null if there are too many to count."""

    next: str | None
    total: int | None


UserName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9._-]{0,31}$", description="a sign-in name")]
N = TypeVar("N", bound=StrEnum)
Chosen = Annotated[N, Field(strict=False)]  # bodies are strict, but give an enum's member by name
Line = Annotated[str, Field(max_length=200, pattern=ONE_LINE)]
Email = Annotated[str, Field(max_length=254)]
Password = Annotated[SecretStr, Field(min_length=1, max_length=1000)]
Secret = Annotated[SecretStr, Field(min_length=1, max_length=200)]
