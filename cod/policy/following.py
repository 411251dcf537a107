"""Positions of readers in tables with ascending ids, and the rows that are new to a reader.

MariaDB assigns an id when a row is written, but the row becomes visible when its transaction
commits. So of two transactions the one with the lower ids may become visible later. Some ids never
appear: a rolled-back transaction leaves a gap, and a Galera node uses only every third id.
Therefore a reader reads all rows again above the lowest id that may still appear, and remembers
which of them it has seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

# Seconds after which a missing id cannot appear any more. MariaDB ends a transaction that executes
# no statement for half of this time (`store.database.ABANDONED`), and a transaction may have to
# wait as long again for rows that another transaction has locked.
SETTLED = 20.0


class Following:
    """A reader's position in a table. The reading process itself measures how long rows have been
    visible: clocks of other servers and times in rows do not matter.

    floor   no row up to this id is new: all ids up to it were seen, or a row with this or a higher
            id had been visible for `SETTLED` seconds when the table was read
    newest  the highest id that was seen
    """

    def __init__(self, floor: int) -> None:
        self.floor = self.newest = floor
        self._seen: set[int] = set()  # ids above the floor
        self._stood: deque[tuple[float, int]] = deque()  # (time, id of the newest row then)

    def unseen(self, ids: Iterable[int]) -> list[int]:
        """Return the new ones of these ids, in ascending order."""
        return sorted(each for each in ids if not self.knows(each))

    def knows(self, row: int) -> bool:
        """Return whether the row with this id is not new."""
        return row <= self.floor or row in self._seen

    def see(self, ids: Sequence[int], begun: float, now: float, is_cut: bool = False) -> None:
        """Record the new ids, in ascending order, that were found in a read of the table from
        `begun` to `now`. `is_cut`: the read has left out ids above the last one, which may be new
        as well."""
        self._seen.update(self.unseen(ids))
        while self._stood and self._stood[0][0] <= begun - SETTLED:
            if is_cut and self._stood[0][1] > ids[-1]:
                break
            self.settle(self._stood.popleft()[1])
        self.settle(self.floor)
        newest = max(self._seen, default=self.floor)
        if newest > self.newest:
            self.newest = newest
            self._stood.append((now, newest))

    def settle(self, row: int) -> None:
        """Record that no row up to this id is new."""
        if row > self.floor:
            self.floor = row
            self._seen = {each for each in self._seen if each > row}
        while self.floor + 1 in self._seen:
            self.floor += 1
            self._seen.remove(self.floor)
