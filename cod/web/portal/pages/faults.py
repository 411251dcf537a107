"""The page about parts of the site outside COD that do not work, and about the site's servers."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from cod.choices import PowerDriverKind
from cod.flows import servers
from cod.flows.nodes import faults
from cod.model import FailedNode
from cod.pool import Tx
from cod.web.api.resources.server import FailureQuery
from cod.web.api.routes import ADMINS, Names
from cod.web.portal.page import Page, PageCall


def bmc(node: FailedNode) -> str:
    """Return the address of the page of a node's BMC; '' if COD knows no such page."""
    if not node.power_address or not PowerDriverKind(node.power_driver).can.page:
        return ""
    host = urlsplit(node.power_address).hostname or node.power_address.partition(":")[0]
    return f"https://{host}/"


def _faults(tx: Tx, ask: PageCall[Names, FailureQuery]) -> dict[str, Any]:
    found = faults.every(tx, now=ask.now)
    return {
        "lasting": [each for each in found if each.ended is None],
        "over": [each for each in found if each.ended is not None],
        "kinds": faults.KINDS,
        "failed": faults.failed(tx, by=ask.query.by),
        "by": list(faults.BY),
        "bmc": bmc,
        "servers": servers.every(tx, now=ask.now, database=ask.database),
    }


PAGES = (Page("/faults", "faults.html", _faults, ADMINS, FailureQuery, shared=True),)
