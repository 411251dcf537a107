"""Settings as people see them: keys of the site file, and what was changed while servers ran."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from cod.model.results import Refused


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A row of `setting_changes`.

    name   'policy.inertia'
    value  as JSON, in the site file's form; None: from then on as the site file has it
    """

    id: int
    at: float
    actor: str
    name: str
    value: str | None

    def read(self) -> Any:
        """Return the value in the site file's form. Raise `Refused` where the row is damaged."""
        try:
            return None if self.value is None else json.loads(self.value)
        except ValueError:
            note = "what the database has of it cannot be read"
            raise Refused("invalid", note, "change") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSetting:
    """A key of the site file, and what it is now.

    name     'policy.inertia', 'subnet.0.name'
    table    what its table is about
    kind     flag, number, text, choice, list or map
    unit     of its number; '': none
    choices  the values that it may have; (): any
    value    in the site file's form; None: not set, or a secret
    text     the same as people write it
    default  in that form, with `default_text`
    source   where the value comes from
    file     what the site file says; None: nothing
    fixed    why it cannot be changed while the servers run, and what to do; '': it can
    problem  why the site file and a change are at odds; '': they are not
    change   the newest change; None: it was never changed
    """

    name: str
    table: str
    about: str
    kind: Literal["flag", "number", "text", "choice", "list", "map"]
    unit: str
    choices: tuple[str, ...]
    value: Any
    text: str
    default: Any
    default_text: str
    source: Literal["default", "file", "change"]
    file: Any
    file_text: str
    fixed: str
    problem: str
    change: SettingChange | None

    @property
    def changed(self) -> bool:
        """Return whether a change stands over the site file, even if it is passed over."""
        return self.change is not None and self.change.value is not None


@dataclass(frozen=True, slots=True)
class SettingView:
    """A setting with its changes, the newest first. `written`: this question has changed it."""

    setting: SiteSetting
    history: tuple[SettingChange, ...]
    texts: tuple[str, ...]
    written: bool = False


class SettingRules(Protocol):
    """A server's view of its site file and of changes to it. `changes`: the newest of each name."""

    def settings(self, changes: Sequence[SettingChange]) -> list[SiteSetting]:
        """Return every setting, in the order of the site file."""

    def setting(self, name: str, changes: Sequence[SettingChange]) -> SiteSetting:
        """Return one. Raise `Refused`, 'not_found'."""

    def checked(self, name: str, value: Any, changes: Sequence[SettingChange]) -> Any:
        """Return the value as the site file would have it, if the site file could have it beside
        the changes. A text is read as people write it. Raise `Refused`."""

    def text(self, change: SettingChange) -> str:
        """Return the value of a change as people write it."""
