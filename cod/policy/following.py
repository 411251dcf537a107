"""Readers of tables whose ids grow, and the rows that are new to them.

MariaDB gives an id to a row when it is written, and shows the row when its transaction commits: of
two transactions the one with the lower ids may come later. Nor are ids without gaps: a transaction
that is undone leaves some, and a node of Galera takes every third. So a reader remembers the ids
above the lowest that may still come, and looks at all of them again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

# Seconds after which an id that is missing does not come any more: twice as long as MariaDB leaves
# a transaction without a statement (`store.engine.ABANDONED`), since one may have to wait so long
# for another's rows.
SETTLED = 20.0


class Following:
    """Position of a reader. It asks no server's clock and no row's time: what has stood for long
    enough is counted by the process that reads.

    floor  no row up to this id is new any more: none is missing, or a higher one had been there for
           `SETTLED` seconds when they were looked for
    """

    def __init__(self, floor: int) -> None:
        self.floor = self._newest = floor
        self._seen: set[int] = set()  # above the floor
        self._stood: deque[tuple[float, int]] = deque()  # when which row was the newest

    def unseen(self, ids: Iterable[int]) -> list[int]:
        """Return those of the ids that are new, in order."""
        return sorted(each for each in ids if not self.knows(each))

    def knows(self, row: int) -> bool:
        """Return whether that id is not new any more."""
        return row <= self.floor or row in self._seen

    def see(self, ids: Iterable[int], begun: float, now: float) -> None:
        """Note what a look has found that began at `begun` and is over: all new ids, or the lowest
        of them."""
        self._seen.update(self.unseen(ids))
        while self._stood and self._stood[0][0] <= begun - SETTLED:
            self.settle(self._stood.popleft()[1])
        self.settle(self.floor)
        newest = max(self._seen, default=self.floor)
        if newest > self._newest:
            self._newest = newest
            self._stood.append((now, newest))

    def settle(self, row: int) -> None:
        """Note that no row up to that id is new any more."""
        if row > self.floor:
            self.floor = row
            self._seen = {each for each in self._seen if each > row}
        while self.floor + 1 in self._seen:
            self.floor += 1
            self._seen.remove(self.floor)
