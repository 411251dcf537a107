"""What the API's document says in words: about its parts, its errors, its headers; and examples of what is sent."""

from __future__ import annotations

ABOUT = """\
Times are seconds since the epoch (UTC), lengths of time seconds, sizes bytes. Things are named by their names; a
template is 'name' (its newest revision) or 'name@revision'. Unknown keys and parameters are refused.

Lists come in parts: `limit`, `sort`, `q`, and `after`, which is the `next` of the part before. Creations take an
`Idempotency-Key`; what is shown has an `ETag`, and changes take `If-Match`. Errors are problem documents (RFC 9457)
whose `code` is stable. On the server's own UNIX socket no credentials are wanted."""

TAGS = {
    "nodes": "Machines", "types": "Node types: kinds of machines", "blocks": "Nodes that are near each other",
    "captures": "Nodes' disks, saved as images", "images": "Disk and partition images",
    "uploads": "Files on their way in, by the tus protocol", "templates": "Configuration templates",
    "vclusters": "Virtual clusters", "requests": "Requests for nodes", "plan": "What the resource manager would do",
    "match": "What would come of a request", "reclaims": "Nodes that are taken for requests of higher priority",
    "vcms": "Virtual cluster managers", "groups": "Groups: owners of vclusters, images and templates",
    "notices": "What groups and the site are told", "energy": "What nodes used", "timeline": "Who held nodes when",
    "pool": "Nodes by state over time", "users": "People", "invitations": "Links that make accounts",
    "me": "Whoever asks", "sign-in": "Tokens for name and password", "tokens": "The site's tokens",
    "audit": "Who changed what", "conflicts": "Address and identity trouble", "states": "The nodes' lifecycle",
    "health": "Does the server answer", "server": "What this server is", "events": "What happens, as it happens",
}

ERRORS = {
    "400": "The body is not JSON, the query string cannot be read, or the request is no HTTP",
    "401": "No token, or one that is not valid",
    "403": "Whoever asks may not do that",
    "404": "No such thing, or none that whoever asks may see",
    "405": "Not with this method; `Allow` says with which",
    "409": "It cannot be done in the present state",
    "412": "The thing is not as `If-Match` has it",
    "413": "The body is too large, or a quota would be exceeded",
    "415": "The body is of another media type",
    "421": "The request was for another host",
    "422": "A value is not acceptable; `field` names it",
    "429": "Too many attempts; `Retry-After` and `RateLimit-Reset` say when the next one is listened to",
    "500": "A bug in COD; the server's log has the details",
    "503": "The database does not answer, or too many ask at once; try again",
}
ALWAYS = ("400", "401", "403", "404", "405", "409", "413", "415", "421", "422", "500", "503")

HEADERS = {
    "Idempotency-Key": "The client's own name for this request: repeated within a day, it is answered as it was the "
                       "first time, and done once",
    "If-Match": "Tags of the thing (`ETag` when it was shown), or '*': only if it still has one of them",
    "If-None-Match": "Tags that the client has: 304 if the thing still has one of them",
}

EXAMPLES: dict[str, dict[str, object]] = {
    "VclusterCreate": {"name": "web", "size": 4, "template": "debian", "group": "physics", "lease": 86400.0,
                       "attributes": '<requires><memory><mib min="32GiB"/></memory></requires>'},
    "Resize": {"size": 8}, "Extend": {"lease": 86400.0}, "Release": {"nodes": ["n3", "n4"]},
    "RequestSubmit": {"tuples": [{"count": 2}], "wait": False},
    "MatchAsk": {"count": 8, "group": "physics", "template": "debian"},
    "GroupCreate": {"name": "physics", "priority": 10, "email": "ann@example.org"},
    "GroupPatch": {"priority": 20, "events": ["notices", "vclusters"]},
    "Because": {"reason": "its fan is loud"}, "PowerWish": {"desired": "cycle"},
    "NodePatch": {"block": "rack1"}, "TypePatch": {"name": "large", "cost": 4.0}, "BlockCreate": {"name": "rack1"},
    "BlockNodes": {"nodes": ["rack1-*"]}, "ReclaimAnswer": {"nodes": ["n3"]},
    "TemplateDocument": {"document": '<template name="web"><image target="disk" name="debian"/></template>',
                         "group": "physics"},
}
