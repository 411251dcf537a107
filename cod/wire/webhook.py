"""A notice as it is posted to a webhook: the JSON document, and the signature by which the receiver
recognises the sender.

Signatures follow the Standard Webhooks specification (standardwebhooks.com), for which receivers
find libraries: `webhook-signature` is 'v1,' and the base64 of HMAC-SHA256 over 'ID.TIMESTAMP.BODY'
under the group's key. Each group has a key of its own, derived from the site's, so that no group
can sign for another and nothing has to be stored.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64encode
from typing import Any

from cod.model import Notice


def group_key(site_key: bytes, group_id: int, name: str, turn: int = 0) -> bytes:
    """Return the group's key, after it was changed `turn` times. The name is part of it, because a
    database may give a deleted group's id to a later group."""
    text = f"webhook {group_id} {name}" + (f" {turn}" if turn else "")
    return hmac.digest(site_key, text.encode(), hashlib.sha256)


def secret(key: bytes) -> str:
    """Return the key as receivers configure it."""
    return "whsec_" + b64encode(key).decode()


def body(
    site: str, notice: Notice, group: str | None, vcluster: str | None, portal: str = ""
) -> bytes:
    """Return the JSON document, the same at each attempt. `portal`: the portal's address for
    browsers; '' if it is not known."""
    document = {"site": site, **document_of(notice, group, vcluster)}
    if notice.link:
        document["link"] = portal + notice.link
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def document_of(notice: Notice, group: str | None, vcluster: str | None) -> dict[str, Any]:
    """Return a notice as a document with names: `group` is null for the site's administrators.
    `events`: the events of a notice for programs."""
    document = {
        "id": notice.id,
        "at": notice.at,
        "kind": notice.kind,
        "group": group,
        "vcluster": vcluster,
        "subject": notice.subject,
        "about": notice.about,
        "link": notice.link,
    }
    return document if notice.events is None else document | {"events": json.loads(notice.events)}


def headers(key: bytes, site: str, notice: Notice, now: float, content: bytes) -> dict[str, str]:
    """Return the headers of one attempt at `now`."""
    name, stamp = unique(site, notice), str(int(now))
    signature = hmac.digest(key, f"{name}.{stamp}.".encode() + content, hashlib.sha256)
    return {
        "Content-Type": "application/json",
        "X-COD-Notice": str(notice.id),
        "webhook-id": name,
        "webhook-timestamp": stamp,
        "webhook-signature": "v1," + b64encode(signature).decode(),
    }


def unique(site: str, notice: Notice) -> str:
    """Return the id by which a receiver recognises a repetition. The row's id alone does not
    suffice: a restored database assigns it again."""
    digest = hashlib.blake2b(
        f"{site} {notice.at!r}".encode(errors="replace"), digest_size=8
    ).hexdigest()
    return f"{notice.id}-{digest}"
