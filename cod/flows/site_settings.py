"""The site's settings, and changes of those that may be changed while the servers run. Each change
is a row; undoing a change adds another row."""

from __future__ import annotations

import json
from typing import Any

from cod.model import (
    Effect,
    FlowContext,
    Refused,
    Result,
    SettingChange,
    SettingRules,
    SettingView,
    SiteSetting,
)
from cod.store import servers, watermarks
from cod.store.engine import Tx
from cod.store.site import settings

FIRST_SCHEMA = 69  # programs for older schemas obey the site file alone
SHOWN = 50  # changes of a setting
WAKES = (Effect("wake", "settings"),)
current = settings.current


def changed(tx: Tx, *, seen: int) -> list[SettingChange] | None:
    """Return the newest change of each setting; None if no setting was changed after the change
    with the id `seen`."""
    return None if settings.newest(tx) == seen else settings.current(tx)


def every(tx: Tx, *, rules: SettingRules) -> list[SiteSetting]:
    """Return every setting, in the order of the site file."""
    return rules.settings(settings.current(tx))


def show(tx: Tx, name: str, rules: SettingRules, *, written: bool = False) -> SettingView:
    """Return a setting with its changes. Raises `Refused`. `written`: the transaction has changed
    it, so that `SettingView.written` is true."""
    setting = rules.setting(name, settings.current(tx))
    history = settings.history(tx, name, SHOWN)
    texts = tuple(map(rules.text, history))
    return SettingView(setting, tuple(history), texts, written)


def put(
    tx: Tx, context: FlowContext, *, name: str, value: Any, rules: SettingRules
) -> Result[SettingView]:
    """Change a setting to `value`; None: to the value in the site file. Raises `Refused`."""
    watermarks.one_at_a_time(tx, "settings")
    changes = settings.current(tx)
    setting = rules.setting(name, changes)
    if setting.fixed and not (value is None and setting.changed):
        raise Refused("conflict", setting.fixed, "name")
    _refuse_older(tx, context.now)
    new = None if value is None else json.dumps(rules.checked(name, value, changes))
    if new == (setting.change.value if setting.change else None):
        return Result(show(tx, name, rules))
    settings.add(tx, name=name, value=new, actor=context.actor, now=context.now)
    return Result(show(tx, name, rules, written=True), WAKES)


def undo(
    tx: Tx, context: FlowContext, *, name: str, change: int, rules: SettingRules
) -> Result[SettingView]:
    """Give a setting the value that it had before a change. Raises `Refused`."""
    rows = settings.history(tx, name)
    if not any(row.id == change for row in rows):
        raise Refused("not_found", f"there is no change {change} of {name}", "change")
    before = next((row for row in rows if row.id < change), None)
    return put(tx, context, name=name, value=before and before.read(), rules=rules)


def _refuse_older(tx: Tx, now: float) -> None:
    """Raise `Refused` if some servers of the site run versions that obey the site file alone."""
    for each in servers.running(tx, now):
        if int(each.database_schema) < FIRST_SCHEMA:
            raise Refused(
                "conflict",
                f"{each.name} runs version {each.version}, which goes by its site file alone:"
                " upgrade it first",
            )
