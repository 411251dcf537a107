"""Settings of the site, and changes of the settings that need no restart of the servers."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from pydantic import Field

from cod import model
from cod.flows import site_settings
from cod.web.api.models import Body, Reply
from cod.web.api.routes import ADMINS, Shaped, listed, named_route, route


class SettingPatch(Body):
    """New value of a setting."""

    value: bool | int | float | str | list[bool | int | float | str] | dict[str, Any] | None = (
        Field(
            description="in the site file's form, or a text as people write it: '2 h 30 min',"
            " '500 GB', 'yes', 'a, b'; null: as the site file has it"
        )
    )


class SettingUndo(Body):
    """Change to undo."""

    change: int = Field(ge=1, description="its id: what held before it is put back")


class SettingReply(Reply):
    """A setting: a key of the site file.

    table    the description of its table
    unit     the unit of its number; '': none
    choices  the values that it may have; none: any
    value    in the site file's form; null: not set, or a secret, which is not shown
    text     the value as people write it
    source   where the value comes from
    file     the value in the site file of the server that answers; null: none
    fixed    why the setting cannot be changed while the servers run, and the remedy; '': it can
    problem  why the site file contradicts a change; '': it does not
    changed_at, changed_by  of the newest change; null: there was none
    """

    name: str
    table: str
    about: str
    kind: Literal["flag", "number", "text", "choice", "list", "map"]
    unit: str
    choices: list[str]
    value: Any
    text: str
    default: Any
    default_text: str
    source: Literal["default", "file", "change"]
    file: Any
    file_text: str
    fixed: str
    problem: str
    changed_at: float | None
    changed_by: str | None

    @classmethod
    def of(cls, setting: model.SiteSetting) -> SettingReply:
        change = setting.change
        return cls.read_from(
            setting,
            changed_at=change.at if change else None,
            changed_by=change.actor if change else None,
        )


class SettingChangeReply(Reply):
    """A change of a setting. `value` is null if the change was undone, so that the site file
    holds."""

    id: int
    at: float
    actor: str
    text: str


class SettingDetail(SettingReply):
    """A setting with its changes, the newest first."""

    changes: list[SettingChangeReply]

    @classmethod
    def of_view(cls, view: model.SettingView) -> SettingDetail:
        """Return the reply from the record."""
        changes = [
            SettingChangeReply(id=each.id, at=each.at, actor=each.actor, text=text)
            for each, text in zip(view.history, view.texts, strict=True)
        ]
        return cls(**dict(SettingReply.of(view.setting)), changes=changes)


_DETAIL = Shaped(SettingDetail, SettingDetail.of_view)

SETTINGS = (
    route(
        "GET /settings",
        ADMINS,
        "List the site's settings, with where their values come from",
        lambda a: partial(site_settings.every, rules=a.rules),
        reply=listed(SettingReply, "All settings, in the order of the site file."),
    ),
    named_route(
        "GET /settings/{name}",
        ADMINS,
        "Show a setting and its changes",
        lambda a: partial(site_settings.show, name=a.names.name, rules=a.rules),
        reply=_DETAIL,
        audit_view=lambda a: partial(_audited, name=a.names.name, rules=a.rules),
    ),
    named_route(
        "PATCH /settings/{name}",
        ADMINS,
        "Change a setting on all servers of the site",
        lambda a: partial(
            site_settings.put,
            context=a.context,
            name=a.names.name,
            value=a.body.value,
            rules=a.rules,
        ),
        reply=_DETAIL,
        body=SettingPatch,
        idle=lambda view: not view.written,
    ),
    named_route(
        "POST /settings/{name}/undo",
        ADMINS,
        "Put back what a setting was before a change",
        lambda a: partial(
            site_settings.undo,
            context=a.context,
            name=a.names.name,
            change=a.body.change,
            rules=a.rules,
        ),
        reply=_DETAIL,
        body=SettingUndo,
        idle=lambda view: not view.written,
    ),
)


class AuditedSetting(Reply):
    """Fields of a setting that the audit compares."""

    value: Any
    source: str


def _audited(tx: Any, *, name: str, rules: model.SettingRules) -> AuditedSetting:
    return AuditedSetting.read_from(site_settings.show(tx, name=name, rules=rules).setting)
