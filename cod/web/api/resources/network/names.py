"""Names (CNAME) that owners add to their vclusters."""

from __future__ import annotations

from functools import partial

from pydantic import Field

from cod import model
from cod.flows.scheduler import vcluster_names
from cod.web.api.models import Body, Reply
from cod.web.api.routes import label_route, listed, named_route, see, use


class NameSet(Body):
    """Target of a name."""

    target: str = Field(
        min_length=1,
        max_length=254,
        description=(
            "a host or another name of the vcluster; or a full "
            "name elsewhere, where the site allows that"
        ),
    )


class NameReply(Reply):
    """A name of a vcluster. `full`: the name in DNS; `host`, `address`: those of the node that it
    now leads to; `dangling`: its node has left, and DNS answers that the name does not exist."""

    name: str
    full: str
    target: str
    external: bool
    host: str
    address: str
    dangling: bool
    created_at: float
    actor: str

    @classmethod
    def of(cls, view: model.NameView) -> NameReply:
        return cls.read_from(view.name, view)


_PATH = "/vclusters/{name}/names/{label}"

NAMES = (
    named_route(
        "GET /vclusters/{name}/names",
        see("vcluster"),
        "List the names (CNAME) of a vcluster",
        lambda a: partial(vcluster_names.every, vcluster=a.names.name, site=a.site),
        reply=listed(NameReply, "The names of a vcluster, in their order."),
    ),
    label_route(
        f"GET {_PATH}",
        see("vcluster"),
        "Show a name of a vcluster",
        lambda a: partial(
            vcluster_names.one, vcluster=a.names.name, name=a.names.label, site=a.site
        ),
        reply=NameReply,
    ),
    label_route(
        f"PUT {_PATH}",
        use("vcluster"),
        "Add a name to a vcluster, or point it at another target",
        lambda a: partial(
            vcluster_names.put,
            context=a.context,
            vcluster=a.names.name,
            name=a.names.label,
            target=a.body.target,
        ),
        reply=NameReply,
        body=NameSet,
        puts=True,
    ),
    label_route(
        f"DELETE {_PATH}",
        use("vcluster"),
        "Remove a name from a vcluster",
        lambda a: partial(
            vcluster_names.remove, vcluster=a.names.name, name=a.names.label, site=a.site, now=a.now
        ),
    ),
)
