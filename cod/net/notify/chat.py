"""Notices in the formats of chat services' incoming webhooks.

Names and reasons in a notice are people's words. They are sent as plain text if a service supports
it, and are escaped otherwise, so that they make no links and mention nobody.

Sources: api.slack.com/reference/block-kit/blocks, developers.mattermost.com (incoming webhooks),
adaptivecards.io/explorer, matrix-org.github.io/matrix-hookshot (inbound webhooks).
"""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any

from cod.choices import NoticeFormat
from cod.model import Notice

LONGEST_TITLE, LONGEST = 150, 3000  # characters of Slack's blocks
MOST_EVENTS = 20  # lines of a message
_MARKUP = re.compile(r"([\\`*_{}\[\]<>()#+\-.!|~@:])")


def body(form: NoticeFormat, notice: Notice, link: str) -> bytes:
    """Return the JSON document in the format `form`; repeated attempts send equal documents.
    `link`: the address of the portal's page; '' if none is known."""
    title, text = _cut(notice.subject, LONGEST_TITLE), _cut(_text(notice), LONGEST)
    document = _FORMS[form](title, text, link)
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def _text(notice: Notice) -> str:
    if notice.events is None:
        return notice.about
    events = json.loads(notice.events)
    lines = [_event(event) for event in events[:MOST_EVENTS]]
    left = len(events) - len(lines)
    return "\n".join([*lines, f"and {left} more"] if left else lines)


def _event(event: dict[str, Any]) -> str:
    """Return the line about an event of a node or of a vcluster."""
    name = event.get("node") or event["vcluster"]
    return f"{name}: {event['event']}, {event.get('to_state') or event.get('state')}"


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _slack(title: str, text: str, link: str) -> dict[str, Any]:
    def block(kind: str, style: str, words: str) -> dict[str, Any]:
        return {"type": kind, "text": {"type": style, "text": words}}

    blocks = [block("header", "plain_text", title)]
    if text:
        blocks.append(block("section", "plain_text", text))
    if link:
        address = escape(link, quote=False).replace("|", "%7C")
        blocks.append(block("section", "mrkdwn", f"<{address}|Open in COD>"))
    return {"text": escape(title, quote=False), "blocks": blocks}


def _mattermost(title: str, text: str, link: str) -> dict[str, Any]:
    def plain(words: str) -> str:
        # no name may follow an @: Mattermost looks for mentions before it unescapes
        return _MARKUP.sub(r"\\\1", words).replace("@", "@\N{WORD JOINER}")

    lines = [f"**{plain(title)}**", *map(plain, text.splitlines())]
    return {"text": "  \n".join([*lines, f"[Open in COD](<{link}>)"] if link else lines)}


def _teams(title: str, text: str, link: str) -> dict[str, Any]:
    # a run of a RichTextBlock is no Markdown, the text of a TextBlock is
    runs: list[dict[str, Any]] = [
        {"type": "TextRun", "text": title, "weight": "Bolder"},
        *({"type": "TextRun", "text": line} for line in text.splitlines()),
    ]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.2",
        "body": [{"type": "RichTextBlock", "inlines": [run]} for run in runs],
        "actions": [{"type": "Action.OpenUrl", "title": "Open in COD", "url": link}]
        if link
        else [],
    }
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "content": card}]}


def _matrix(title: str, text: str, link: str) -> dict[str, Any]:
    lines = [f"<strong>{escape(title)}</strong>", *map(escape, text.splitlines())]
    if link:
        lines.append(f'<a href="{escape(link)}">Open in COD</a>')
    return {
        "text": "\n".join(part for part in (title, text, link) if part),
        "html": "<br>".join(lines),
    }


_FORMS = {
    NoticeFormat.SLACK: _slack,
    NoticeFormat.MATTERMOST: _mattermost,
    NoticeFormat.TEAMS: _teams,
    NoticeFormat.MATRIX: _matrix,
}
