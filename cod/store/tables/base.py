"""Common parts of all tables: types of columns, names of constraints, the metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
    true,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite's rowid alias must be INTEGER
Document = Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
Name = String(63)  # a DNS label
FullName = String(127)  # GROUP/NAME of an image or template, or the site's NAME
# 'A' and 'a' are different values
Exact = String(300).with_variant(mysql.VARCHAR(300, collation="utf8mb4_bin"), "mysql", "mariadb")
Mac = String(17)
Time: Double[float] = Double()


class Words(TypeDecorator[tuple[str, ...]]):
    """Words, with commas between them."""

    impl = String
    cache_ok = True

    @property
    def python_type(self) -> type[Any]:
        """Return what values are in Python."""
        return tuple

    def process_bind_param(self, value: Sequence[str] | None, _dialect: object) -> str | None:
        """Return the words as one text. A value from a backup may be this text already."""
        return value if value is None or isinstance(value, str) else ",".join(value)

    def process_result_value(self, value: str | None, _dialect: object) -> tuple[str, ...] | None:
        """Return the words."""
        return None if value is None else tuple(value.split(","))


def not_null(
    name: str, type_: TypeEngine[Any] | type[TypeEngine[Any]], *keys: ForeignKey, **options: Any
) -> Column[Any]:
    """Return a column that is never null; `options` as of a column."""
    return Column(name, type_, *keys, nullable=False, **options)


def defaulted(
    name: str,
    type_: TypeEngine[Any] | type[TypeEngine[Any]],
    value: str | float,
    *keys: ForeignKey,
    **options: Any,
) -> Column[Any]:
    """Return a column that is never null and has the default `value`, both in new rows and in those
    that existed before the column was added."""
    if isinstance(value, bool):
        in_sql: Any = true() if value else false()
    else:
        in_sql = f"{value}".removesuffix(".0")
    return not_null(name, type_, *keys, default=value, server_default=in_sql, **options)


def table(name: str, *columns: Column[object] | Index | UniqueConstraint, comment: str) -> Table:
    """Return a table of COD's database. `comment`: its theory."""
    return Table(
        name, metadata, *columns, comment=comment, mysql_engine="InnoDB", mysql_charset="utf8mb4"
    )
