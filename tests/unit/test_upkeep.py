"""Stands that tests share are tended before each test."""

from __future__ import annotations

import pytest

from tests import upkeep


class Counted:
    """A stand that counts how often it is tended, and cannot be mended when it is `broken`."""

    broken, tended = False, 0

    def tend(self) -> None:
        self.tended += 1
        if self.broken:
            raise RuntimeError("no answer")


def test_a_stand_that_cannot_be_mended_fails_one_test(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = Counted(), Counted()
    monkeypatch.setattr(upkeep, "open_stands", [good, bad])
    monkeypatch.setattr(upkeep, "_broken", [])
    upkeep.tend("test_b", "test_a")
    bad.broken = True
    with pytest.raises(pytest.fail.Exception, match="test_b left the stand broken: no answer"):
        upkeep.tend("test_c", "test_b")
    for _ in range(3):
        with pytest.raises(pytest.xfail.Exception):
            upkeep.tend("test_d", "test_c")
    assert (good.tended, bad.tended) == (5, 2)
