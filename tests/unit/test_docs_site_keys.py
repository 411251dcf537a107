"""Every table and key of the site file that the manual names in a sentence is one."""

from __future__ import annotations

import re
from pathlib import Path

from cod.site.file import SiteFile, keys

ROOT = Path(__file__).parents[2]
TABLES = {key.name: key for key in keys(SiteFile) if key.table is not None}
# of other files: cloudbase-init's, VCMs', the lab's, the simulator's; and one that was turned down
OTHERS = {"config_drive", "demand", "group", "networks", "nodes", "slurm", "tracing", "window"}
NAMED = re.compile(r"`(\[{1,2})([a-z_]+)\]{1,2}(?: ([a-z_]+)[^`]*)?`")


def test_tables_and_keys_in_sentences_are_there() -> None:
    wrong = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for bracket, name, key in NAMED.findall(page.read_text()):
            table = TABLES.get(name)
            if table is None or table.table is None:
                wrong += [] if name in OTHERS else [f"{page.name}: [{name}]"]
            elif table.repeated != (bracket == "[["):
                wrong.append(f"{page.name}: {bracket}{name}")
            elif key and key not in {each.name for each in keys(table.table)}:
                wrong.append(f"{page.name}: [{name}] {key}")
    assert not wrong
