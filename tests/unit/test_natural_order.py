"""The order of names, as people count."""

from __future__ import annotations

import random

from cod.model.names import natural_key

ORDERED = ["", "7", "a", "n01", "n1", "n1x", "n2", "n10", "r2-n1", "r2-n9", "r10-n1", "zwölf", "²"]


def test_names_are_in_the_order_in_which_people_count() -> None:
    names = random.Random(1).sample(ORDERED, len(ORDERED))
    assert sorted(names, key=natural_key) == ORDERED
