"""Renders templates into pages by Jinja2: everything is escaped, an undefined variable is an error,
and pages have no inline scripts or styles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cod import quantity, states
from cod.flows.people import signin
from cod.web.portal import formatting, glossary, links, nav
from cod.web.portal.assets import Assets


class Templates:
    """The templates in `folder`, which refer to `assets`."""

    def __init__(self, folder: Path, assets: Assets) -> None:
        self._env = Environment(
            loader=FileSystemLoader(folder),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            cache_size=-1,
        )
        for name in (
            "browser",
            "when",
            "clock",
            "typed",
            "duration",
            "size",
            "count",
            "percent",
            "dotted",
            "node_word",
            "state_word",
            "by_word",
            "phase",
            "remedy",
            "colons",
        ):
            self._env.filters[name] = getattr(formatting, name)
        self._env.filters["exact"] = quantity.exact_span
        self._env.filters["exact_size"] = quantity.exact_size
        self._env.tests["at_work"] = states.WORKING.__contains__
        self._env.globals |= {
            "url": links.url,
            "glossary": glossary.TERMS,
            "asset": assets.paths.__getitem__,
            "has_asset": assets.paths.__contains__,  # not every server has the widgets' files
            "node_words": formatting.NODE_WORDS,
            "phases": states.PHASES,
            "nav_counted": nav.COUNTED,
            "password_rule": signin.PASSWORD_RULE,
        }
        self._env.globals["m"] = self._env.get_template("_macros.html").module

    def page(self, template: str, values: Mapping[str, Any]) -> str:
        """Return the whole page."""
        return self._env.get_template(template).render(values)

    def part(self, template: str, block: str, values: Mapping[str, Any]) -> str | None:
        """Return one block of the template; None if the template has no such block."""
        found = self._env.get_template(template)
        if block not in found.blocks:
            return None
        return "".join(found.blocks[block](found.new_context(dict(values))))

    def names(self) -> list[str]:
        """Return the names of all templates."""
        return self._env.list_templates()
