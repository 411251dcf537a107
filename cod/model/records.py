"""Cheap frozen records, for those that are made for each message or each row."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["record"]

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    from dataclasses import dataclass

    def record(*, frozen: bool, slots: bool):
        """Return the decorator of a dataclass that is frozen for mypy only, not at run time.

        mypy refuses assignments to fields as with `dataclass`. The guard at run time would make
        creating a record of 21 fields take seven times as long (4.6 us instead of 0.7).
        """
        assert frozen, "for frozen records"
        return dataclass(slots=slots, unsafe_hash=True)
