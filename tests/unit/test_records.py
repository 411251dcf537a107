"""Records without a guard at run time behave as frozen dataclasses do otherwise."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace

import pytest

from cod.model.records import record


@record(frozen=True, slots=True)
class Quick:
    name: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Guarded:
    name: str
    number: int = 0


def test_a_record_is_compared_hashed_replaced_and_kept_by_its_fields() -> None:
    one, same, other = Quick("a", 1), Quick("a", 1), replace(Quick("a"), number=2)
    assert one == same != other == Quick("a", 2)
    assert {one, same, other} == {one, other}
    assert hash(one) == hash(Guarded("a", 1))
    assert repr(one) == repr(Guarded("a", 1)).replace("Guarded", "Quick")
    assert pickle.loads(pickle.dumps(one)) == one


def test_a_record_has_no_fields_but_its_own() -> None:
    with pytest.raises(AttributeError):
        Quick("a").numbr = 3  # type: ignore[attr-defined]
