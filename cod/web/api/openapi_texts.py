"""Texts of the API's document: tags, errors and headers; and examples of request bodies."""

from __future__ import annotations

ABOUT = """\
Times are seconds since the epoch (UTC), lengths of time seconds, sizes bytes. Things are named by their names; a
template is 'name' (its newest revision) or 'name@revision'. Unknown keys and parameters are refused.

Lists come in pages: `limit`, `sort`, `q`, and `after`, which is the `next` of the previous page. Creations take an
`Idempotency-Key`. Replies have an `ETag`, and changes take `If-Match`. Errors are problem documents (RFC 9457) with a
stable `code`. The server's own UNIX socket needs no credentials."""

TAGS = {
    "nodes": "Machines",
    "inventory": "Lists of machines, entered before they boot",
    "types": "Node types: kinds of machines",
    "blocks": "Nodes that share a rack or a switch",
    "switches": "Switches whose ports COD puts into VLANs",
    "ports": "Switch ports of nodes",
    "captures": "Nodes' disks, saved as images",
    "images": "Disk and partition images",
    "uploads": "Resumable uploads (tus protocol)",
    "templates": "Configuration templates",
    "vclusters": "Virtual clusters",
    "requests": "Requests for nodes",
    "series": "Reservations that recur",
    "plan": "Actions of the resource manager's next pass",
    "match": "Forecasts of requests",
    "reclaims": "Nodes taken for requests of higher priority",
    "shares": "Groups' shares, guarantees and limits",
    "vcms": "Virtual cluster managers",
    "groups": "Groups: owners of vclusters, images and templates",
    "notices": "Notices to groups and administrators",
    "energy": "Energy that nodes used",
    "timeline": "Nodes held over time",
    "calendar": "Nodes held, and coming, in time",
    "maintenance": "Times in which nodes are out of service",
    "volumes": "Volumes on file servers, which vclusters mount",
    "fileservers": "The site's file servers",
    "pool": "Nodes by state over time",
    "users": "People",
    "invitations": "Invitation links",
    "me": "Your own account",
    "sign-in": "Tokens for name and password",
    "tokens": "The site's tokens",
    "settings": "The site's settings, and changes of them",
    "audit": "Log of changes",
    "conflicts": "Conflicts of addresses and identities",
    "faults": "What outside of COD does not do its part",
    "hold": "A held site: whether its machines and its database agree",
    "states": "The nodes' lifecycle",
    "health": "State of the server",
    "server": "Name and version of the server",
    "servers": "Hosts of the site's servers, and the parts that run there",
    "targets": "Nodes for a monitoring system to watch",
    "events": "Live events",
    "documents": "The site's configuration as documents, compared and applied",
}

ERRORS = {
    "400": "The body is not JSON, the query string is malformed, or the request is not HTTP",
    "401": "The token is missing or invalid",
    "403": "The account has no right to do that",
    "404": "No such thing, or the account may not see it",
    "405": "Method not allowed; `Allow` lists the allowed ones",
    "409": "Not possible in the present state",
    "412": "The thing has changed: its tag is not in `If-Match`, or is in `If-None-Match`",
    "413": "The body is too large, or a quota would be exceeded",
    "415": "Unsupported media type",
    "421": "The request is for another host",
    "422": "A value is invalid; `field` names it",
    "429": "Too many attempts; `Retry-After` and `RateLimit-Reset` tell when to try again",
    "500": "A bug in COD; the server's log has the details",
    "503": "The database does not answer, or the server is overloaded; try again",
}
ALWAYS = ("400", "401", "403", "404", "405", "409", "413", "415", "421", "422", "500", "503")

HEADERS = {
    "Idempotency-Key": (
        "Client's name of this request. A repetition within a day gets the first answer and has no "
        "further effect"
    ),
    "If-Match": (
        "Tags from `ETag`, or '*': apply the change only if the thing still has one of them"
    ),
    "If-None-Match": (
        "Tags that the client has, or '*' for any: 304 if the thing still has one of them; of a "
        "change, 412"
    ),
}

EXAMPLES: dict[str, dict[str, object]] = {
    "VclusterCreate": {
        "name": "web",
        "size": 4,
        "template": "debian",
        "group": "physics",
        "lease": 86400.0,
        "attributes": '<requires><memory><mib min="32GiB"/></memory></requires>',
    },
    "Resize": {"size": 8},
    "Extend": {"lease": 86400.0},
    "Release": {"nodes": ["n3", "n4"]},
    "VolumeCreate": {"name": "data", "size": 214748364800, "group": "physics"},
    "VolumeAttach": {"vcluster": "web", "mount": "/data", "read_only": True},
    "NameSet": {"target": "n3"},
    "RequestSubmit": {"tuples": [{"count": 2}], "wait": False},
    "MatchAsk": {"count": 8, "group": "physics", "template": "debian"},
    "GroupCreate": {"name": "physics", "priority": 10, "email": "ann@example.org"},
    "GroupPatch": {"priority": 20, "events": ["notices", "vclusters"]},
    "OutOfService": {"reason": "its fan is loud", "until": 1796716800.0},
    "PowerWish": {"desired": "cycle"},
    "NodePatch": {"block": "rack1"},
    "TypePatch": {"name": "large", "cost": 4.0},
    "BlockCreate": {"name": "rack1"},
    "BlockNodes": {"nodes": ["rack1-*"]},
    "DocumentSet": {"documents": [{"kind": "group", "name": "physics", "max_lease": "30 d"}]},
    "ReclaimAnswer": {"nodes": ["n3"]},
    "TemplateDocument": {
        "document": '<template name="web"><image target="disk" name="debian"/></template>',
        "group": "physics",
    },
}
