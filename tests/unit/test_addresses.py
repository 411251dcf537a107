"""Ranges of addresses: how many nodes they are for, and which touch."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from cod.model import AddressRange, joined


@given(st.integers(0x0A000000, 0x0A000400), st.integers(-1, 1500))
def test_room_counts_the_addresses_that_do_not_end_in_0_or_255(first: int, length: int) -> None:
    last = first + length
    assert AddressRange(first, last).room == sum(
        address & 0xFF not in (0, 255) for address in range(first, last + 1)
    )


def test_the_room_of_the_largest_block_is_known_without_walking_it() -> None:
    before = time.process_time()
    assert AddressRange(0, 2**32 - 1).room == 2**32 - 2 * 2**24
    assert time.process_time() - before < 1, "walking it would take minutes"


def test_ranges_that_touch_are_joined() -> None:
    found = joined([AddressRange(8, 9), AddressRange(0, 3), AddressRange(4, 5), AddressRange(5, 6)])
    assert found == (AddressRange(0, 6), AddressRange(8, 9))
