"""Configuration templates: rows that never change; a change is a new revision."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from sqlalchemy import Select, select

from cod.model import Template
from cod.store import tables as t
from cod.store.engine import Tx

_c = t.config_templates.c
COLUMNS = [_c[f.name] for f in fields(Template)]


def get(tx: Tx, template_id: int) -> Template | None:
    """The revision with that id."""
    return _one(tx, select(*COLUMNS).where(_c.id == template_id))


def find(tx: Tx, name: str) -> Template | None:
    """The template that 'name' (its newest revision that is not retired) or 'name@revision' names."""
    own, _, revision = name.partition("@")
    query = select(*COLUMNS).where(_c.name == own)
    if revision:
        plain = revision.isdecimal() and len(revision) < 10
        return _one(tx, query.where(_c.revision == int(revision))) if plain else None
    return _one(tx, query.where(_c.retired_at.is_(None)).order_by(_c.revision.desc()).limit(1))


def documents(tx: Tx, template_ids: Iterable[int]) -> dict[int, str]:
    """The documents of those revisions by id."""
    return {row[0]: row[1] for row in tx.execute(select(_c.id, _c.document).where(_c.id.in_(list(template_ids))))}


def _one(tx: Tx, query: Select[Any]) -> Template | None:
    row = tx.execute(query).one_or_none()
    return Template(*row) if row else None
