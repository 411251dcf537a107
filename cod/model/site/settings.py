"""Settings for people: keys of the site file, and changes to them while the servers run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from cod.model.results import Refused


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A row of `setting_changes`.

    name   the changed key, such as 'policy.inertia'
    value  JSON, in the site file's form; None: the value in the site file applies again
    """

    id: int
    at: float
    actor: str
    name: str
    value: str | None

    def read(self) -> Any:
        """Return the value in the site file's form. Raise `Refused` if the row is damaged."""
        try:
            return None if self.value is None else json.loads(self.value)
        except ValueError:
            note = "what the database has of it cannot be read"
            raise Refused("invalid", note, "change") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSetting:
    """A key of the site file, and its present value.

    name     such as 'policy.inertia', 'subnet.0.name'
    table    description of its table
    about    description of the key
    kind     flag, number, text, choice, list or map
    unit     unit of a number; '': none
    choices  the allowed values; (): any
    value    the present value, in the site file's form; None: not set, or a secret
    text     `value` as people write it
    default  the default, in the site file's form; `default_text`: as people write it
    source   the origin of the value
    file     the value in the site file; None: it has none; `file_text`: as people write it
    fixed    why it cannot be changed while the servers run, and what to do; '': it can be changed
    problem  why the site file and a change contradict each other; '': they do not
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
        """Return whether a change overrides the site file, even if the change is not applied
        because of a problem."""
        return self.change is not None and self.change.value is not None


@dataclass(frozen=True, slots=True)
class SettingView:
    """A setting with its changes, the newest first.

    texts    the changes' values, as people write them
    written  whether the present request has changed the setting
    """

    setting: SiteSetting
    history: tuple[SettingChange, ...]
    texts: tuple[str, ...]
    written: bool = False


class SettingRules(Protocol):
    """A server's access to its site file and the changes to it. `changes`: the newest change of
    each setting."""

    def settings(self, changes: Sequence[SettingChange]) -> list[SiteSetting]:
        """Return every setting, in the order of the site file."""

    def setting(self, name: str, changes: Sequence[SettingChange]) -> SiteSetting:
        """Return one setting. Raise `Refused`, 'not_found', if there is none of that name."""

    def checked(self, name: str, value: Any, changes: Sequence[SettingChange]) -> Any:
        """Return a new value in the site file's form, if it is valid together with the site file
        and the changes. A text is read as people write it. Raise `Refused` if it is not valid."""

    def text(self, change: SettingChange) -> str:
        """Return the value of a change as people write it."""
