"""Settings that are changed while the servers run, and the site that results from the site file and
these changes.

    site file ---> tables ---.
                             +--> the rules of `site.file` --> Site --> SiteRef --> services
    setting_changes (rows) --'

A change replaces the value of its key in the tables, so it is read and checked like the site file
itself. It overrides the file until it is taken back. A change is passed over if it contradicts the
file (which may have been edited since), or if this program does not know its setting (a newer
server made it); `problem` then says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from cod.model import Refused, SettingChange, Site, SiteSetting
from cod.quantity import exact_size, exact_span, read_size, read_span
from cod.site import load
from cod.site.file import Key, SiteFile, about, keys
from cod.site.load import ConfigError

OPEN = frozenset(
    {
        "burnin",
        "console",
        "energy",
        "groups",
        "images",
        "notices",
        "policy",
        "signin",
        "smtp",
        "volumes",
    }
)
"""Tables whose keys can be changed while the servers run, but for those that say why not (`fixed`)
and those that name files."""
DAYS = 86400.0
HIDDEN = "hidden"
_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class SiteChanges:
    """The site file of this server as it was read last, and the changes that override it."""

    def __init__(self, path: Path, tables: Mapping[str, Any]) -> None:
        self._path, self._tables = path, tables

    def reread(self) -> load.Settings:
        """Read the file again, and return its settings of this server. Raises `ConfigError`; then
        the file as it was read before stays in force."""
        tables = load.tables(self._path)
        settings = load.settings(load.checked(tables, self._path), self._path)
        self._tables = tables
        return settings

    def site(self, changes: Iterable[SettingChange]) -> tuple[Site, dict[str, str]]:
        """Return the site, and the reasons for which changes are passed over, by the settings'
        names."""
        file, refused = self._merged(changes)
        return load.site(file), refused

    # ------------------------------------------------------------ `model.SettingRules`

    def settings(self, changes: Sequence[SettingChange]) -> list[SiteSetting]:
        """Return every setting, in the order of the site file."""
        _, refused = self._merged(changes)
        newest = {each.name: each for each in changes}
        return [
            self._setting(name, key, table, newest.get(name), refused.get(name, ""))
            for name, key, table in _all(self._tables)
        ]

    def setting(self, name: str, changes: Sequence[SettingChange]) -> SiteSetting:
        """Return one setting. Raises `Refused`, 'not_found'."""
        for each in self.settings(changes):
            if each.name == name:
                return each
        raise Refused("not_found", f"there is no setting {name!r}", "name")

    def checked(self, name: str, value: Any, changes: Sequence[SettingChange]) -> Any:
        """Return the value in the site file's form. Raises `Refused`."""
        key = open_keys()[name]
        kind, _ = _kind(key.hint)
        if isinstance(value, str) and kind not in ("text", "choice"):
            try:
                value = _read(kind, key.unit, value)
            except ValueError as error:
                raise Refused("invalid", str(error), "value") from None
        # checked in place of the former change; changes that are passed over stay out
        others = [each for each in changes if each.name != name and each.value is not None]
        _, refused = self._merged(others)
        standing = {each.name: each.read() for each in others if each.name not in refused}
        try:
            load.checked(_over(self._tables, {**standing, name: value}), self._path)
        except ConfigError as error:
            problem = error.problems[0]
            raise Refused("invalid", problem.removeprefix(f"{name}: "), "value") from None
        return value

    def text(self, change: SettingChange) -> str:
        """Return the value of a change, written for people."""
        key = open_keys().get(change.name)
        if change.value is None:
            return "as in the site file"
        try:
            return _text(change.read(), key.unit if key else "")
        except Refused:
            return change.value

    # ------------------------------------------------------------

    def _merged(self, changes: Iterable[SettingChange]) -> tuple[SiteFile, dict[str, str]]:
        """Return the file with the changes, and the reasons for which changes are passed over. When
        two changes contradict each other, the newer one is passed over."""
        known, kept, refused = open_keys(), {}, {}
        for each in sorted(changes, key=lambda one: one.id):
            if each.value is None:
                continue
            if each.name not in known:
                refused[each.name] = "this server does not know it as a setting to be changed"
                continue
            try:
                kept[each.name] = each.read()
            except Refused as error:
                refused[each.name] = str(error)
        try:
            return load.checked(_over(self._tables, kept), self._path), refused
        except ConfigError:
            file = load.checked(self._tables, self._path)
        good: dict[str, Any] = {}
        more = True
        while more:  # one may only go together with a newer one
            more = False
            for name in [each for each in kept if each not in good]:
                tried = {**good, name: kept[name]}
                try:
                    file = load.checked(_over(self._tables, tried), self._path)
                except ConfigError as error:
                    refused[name] = error.problems[0]
                else:
                    good, more = tried, True
                    refused.pop(name, None)
        return file, refused

    def _setting(
        self, name: str, key: Key, table: str, change: SettingChange | None, refused: str
    ) -> SiteSetting:
        in_file = _in_file(self._tables, name)
        default = None if key.required else _plain(key.default)
        own = in_file if in_file is not None else default
        changed = change is not None and change.value is not None and not refused
        value = change.read() if change is not None and changed else own
        problem = ""
        if refused:
            problem = f"The change is not in effect: {refused}."
        elif changed and in_file is not None and in_file != value:
            problem = (
                f"The site file says {_text(in_file, key.unit)}. The change counts; take the key"
                " out of the site file, or take the change back."
            )
        kind, choices = _kind(key.hint)
        secret = key.secret and value not in (None, "")
        return SiteSetting(
            name=name,
            table=table,
            about=key.about,
            kind=kind,
            unit=key.unit,
            choices=choices,
            value=None if secret else value,
            text=HIDDEN if secret else _text(value, key.unit),
            default=default,
            default_text=_text(default, key.unit),
            source="change" if changed else "default" if in_file is None else "file",
            file=None if key.secret else in_file,
            file_text=HIDDEN if key.secret and in_file else _text(in_file, key.unit),
            fixed=_fixed(name, key, table),
            problem=problem,
            change=change,
        )


def _all(tables: Mapping[str, Any]) -> Iterator[tuple[str, Key, str]]:
    """Yield (name, key, its table's description) of every setting. Of repeated tables, those that
    are in the file are listed."""
    for outer, name, inner in _tables():
        places = [f"{outer.name}."]
        if outer.repeated:
            places = [f"{outer.name}.{n}." for n in range(len(tables.get(outer.name, ())))]
        elif outer.table is None:
            places = [""]
        yield from ((place + key.name, key, name) for place in places for key in inner)


@cache
def _tables() -> list[tuple[Key, str, list[Key]]]:
    """Return each top-level key of the file with its table's description and the table's keys. A
    key that is no table is listed as its own only key."""
    return [
        (outer, about(outer.table), keys(outer.table))
        if outer.table
        else (outer, "The site itself.", [outer])
        for outer in keys(SiteFile)
    ]


@cache
def open_keys() -> dict[str, Key]:
    """Return the keys that can be changed while the servers run, by the settings' names."""
    return {name: key for name, key, table in _all({}) if not _fixed(name, key, table)}


def _fixed(name: str, key: Key, table: str) -> str:
    """Return a text on why a setting cannot be changed while the servers run, and on what to do
    instead; '' where it can be changed."""
    if name.partition(".")[0] in OPEN and not key.fixed and not key.file:
        return ""
    reason = f"Not changed here: {key.fixed}. " if key.fixed else ""
    verb = "reload" if "on SIGHUP" in table else "restart"
    return f"{reason}Change it in the site file of each server, then systemctl {verb} cod."


def _over(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables with the changed values."""
    made = dict(tables)
    for name, value in changes.items():
        table, key = name.split(".")
        made[table] = {**made.get(table, {}), key: value}
    return made


def _in_file(tables: Any, name: str) -> Any:
    """Return the value of a setting in the site file; None: the file does not have it."""
    for part in name.split("."):
        tables = tables[int(part)] if isinstance(tables, list) else tables.get(part)
        if tables is None:
            return None
    return tables


def _plain(value: Any) -> Any:
    """Return a default value in the form that JSON can hold."""
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Enum | Path):
        return str(value)
    return value


# ---------------------------------------------------------------- kinds and texts


def _kind(hint: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the kind of a key's values, and the allowed values of a choice."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    origin, inner = get_origin(hint), get_args(hint)
    if NoneType in inner:
        return _kind(next(each for each in inner if each is not NoneType))
    if origin is Literal:
        return "choice", tuple(map(str, inner))
    if origin is tuple:
        return "list", _kind(inner[0])[1]
    if origin is not None:
        return "map", ()
    if issubclass(hint, Enum):
        return "choice", tuple(str(each.value) for each in hint)
    if hint is bool:
        return "flag", ()
    return ("number" if hint in (int, float) else "text"), ()


def _read(kind: str, unit: str, text: str) -> Any:
    """Return a value that a person has written in the site file's form. Raises ValueError."""
    text = text.strip()
    if kind == "flag":
        if text.lower() not in _YES + _NO:
            raise ValueError("should be yes or no")
        return text.lower() in _YES
    if kind == "list":
        parts = [part.strip() for part in re.split(r"[,\n]", text) if part.strip()]
        return [_read("number", unit, part) if unit else part for part in parts]
    if kind == "map":
        pairs = [part.partition("=") for part in re.split(r"[,\n]", text) if part.strip()]
        return {key.strip(): _read("number", unit, value) for key, _, value in pairs}
    if unit == "seconds":
        return read_span(text)
    if unit == "bytes":
        return read_size(text)
    if unit == "days" and not re.fullmatch(r"[0-9.]+", text):
        return read_span(text) / DAYS
    number = text.removesuffix(unit).strip()
    try:
        return int(number) if re.fullmatch(r"-?[0-9]+", number) else float(number)
    except ValueError:
        raise ValueError("should be a number") from None


def _text(value: Any, unit: str) -> str:
    """Return a value, written for people; '' for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_text(each, unit) for each in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_text(each, unit)}" for key, each in value.items())
    if not isinstance(value, int | float):
        return str(value)
    if unit == "seconds":
        return exact_span(value)
    if unit == "bytes":
        return exact_size(int(value))
    number = str(value) if isinstance(value, int) else f"{value:.15g}"
    return f"{number} {unit}".strip()
