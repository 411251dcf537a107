"""Hatch's hook: the manual that `make manual` has built goes into the wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManualHook(BuildHookInterface):
    """Adds build/manual where it is there; the portal says where it is not."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the folder among those that are packed."""
        built = Path(self.root) / "build/manual"
        if version != "editable" and built.is_dir():
            build_data["force_include"][str(built)] = "cod/_data/manual"
