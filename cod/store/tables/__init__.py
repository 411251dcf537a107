"""Every table, with its theory. The paper's persistent tables keep their names (figure 3), the
transitional ones too.

Times are seconds since the epoch (UTC) in DOUBLE columns, so that SQLite and MariaDB agree to the
bit; IPv4 addresses are integers, so that ranges sort; XML documents are text, already validated.

Nothing outside `cod/store` (and the migrations) names a column in SQL. A change here needs a
migration in `schema/migrations`; a test compares the two.
"""

# ruff: noqa: F403
from __future__ import annotations

from cod.store.tables.base import *
from cod.store.tables.images import *
from cod.store.tables.nodes import *
from cod.store.tables.notices import *
from cod.store.tables.people import *
from cod.store.tables.scheduler import *
from cod.store.tables.switches import *
from cod.store.tables.volumes import *
