"""Hatch's hook: what `make manual` and `make widgets` have built goes into the wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILT = ("manual", "widgets")


class BuiltHook(BuildHookInterface):
    """Adds those of the folders in build/ that are there; the portal says which it lacks."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the folders among those that are packed."""
        for name in BUILT:
            built = Path(self.root) / "build" / name
            if version != "editable" and built.is_dir():
                build_data["force_include"][str(built)] = f"cod/_data/{name}"
