"""The environment that renders templates into pages, by Jinja2: everything is escaped, an undefined
variable is an error, and pages have no inline scripts or styles."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cod import quantity, states
from cod.flows.people import signin
from cod.web.portal import formatting, glossary, links, nav
from cod.web.portal.assets import Assets


def environment(folder: Path, assets: Assets) -> Environment:
    """Return the environment with the templates in `folder`, which refer to `assets`."""
    made = Environment(
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
        made.filters[name] = getattr(formatting, name)
    made.filters["exact"] = quantity.exact_span
    made.filters["exact_size"] = quantity.exact_size
    made.tests["at_work"] = states.WORKING.__contains__
    made.globals |= {
        "url": links.url,
        "glossary": glossary.TERMS,
        "asset": assets.paths.__getitem__,
        "has_asset": assets.paths.__contains__,  # not every server has the widgets' files
        "node_words": formatting.NODE_WORDS,
        "phases": states.PHASES,
        "nav_counted": nav.COUNTED,
        "password_rule": signin.PASSWORD_RULE,
    }
    made.globals["m"] = made.get_template("_macros.html").module
    return made
