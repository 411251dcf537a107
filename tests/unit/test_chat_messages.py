"""A notice in the forms of chat services: what each shows; no text of people becomes markup."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from lxml import html

from cod.choices import NoticeFormat
from cod.model import Notice
from cod.net.notify import chat

CHATS = [form for form in NoticeFormat if form != NoticeFormat.JSON]
NOTICE = Notice(
    17, 1e9, "lease-warning", 3, 7, "web: lease ends in 1 h", "It ends.\nExtend it.", None, "/v/web"
)
HOSTILE = "<!channel> @all *b* _i_ [x](http://evil) <b>&amp;"


LINK = "https://cod/v/web"


def posted(form: NoticeFormat, notice: Notice = NOTICE, link: str = LINK) -> Any:
    return json.loads(chat.body(form, notice, link))


def texts(value: Any) -> list[str]:
    """Return all strings of a JSON document."""
    if isinstance(value, str):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in inside for text in texts(part)]


@pytest.mark.parametrize("form", CHATS)
def test_a_chat_shows_what_happened_and_where_to_act(form: NoticeFormat) -> None:
    whole = "\n".join(texts(posted(form))).replace("\\", "")
    for wanted in ("web: lease ends in 1 h", "It ends.", "Extend it.", "https://cod/v/web"):
        assert wanted in whole, form


@pytest.mark.parametrize("form", CHATS)
def test_there_is_no_link_where_no_address_is_known(form: NoticeFormat) -> None:
    assert "/v/web" not in json.dumps(posted(form, link=""))
    assert "Open in COD" not in json.dumps(posted(form, link=""))


@pytest.mark.parametrize("form", CHATS)
def test_a_chat_shows_events_a_line_each_and_counts_the_rest(form: NoticeFormat) -> None:
    events: list[dict[str, Any]] = [
        {"id": 1, "vcluster": "web", "event": "state", "state": "active"},
        {"id": 2, "node": "n1", "event": "wipe", "to_state": "wiping", "vcluster": None},
    ]
    many = replace(NOTICE, about="", events=json.dumps(events * 20))
    whole = "\n".join(texts(posted(form, many))).replace("\\", "")
    for wanted in ("web: state, active", "n1: wipe, wiping", "and 20 more"):
        assert wanted in whole


@pytest.mark.parametrize("form", CHATS)
def test_long_texts_are_cut(form: NoticeFormat) -> None:
    long = replace(NOTICE, subject="s" * 5000, about="a" * 50_000)
    assert len(json.dumps(posted(form, long))) < 10_000


def test_slack_gets_plain_text_but_for_the_link() -> None:
    found = posted(NoticeFormat.SLACK, replace(NOTICE, subject=HOSTILE, about=HOSTILE))
    assert "<" not in found["text"]
    header, section, link = found["blocks"]
    assert header["text"] == {"type": "plain_text", "text": HOSTILE}
    assert section["text"] == {"type": "plain_text", "text": HOSTILE}
    assert link["text"] == {"type": "mrkdwn", "text": "<https://cod/v/web|Open in COD>"}


def test_mattermost_gets_markdown_whose_marks_are_escaped() -> None:
    text = posted(NoticeFormat.MATTERMOST, replace(NOTICE, subject="x", about=HOSTILE))["text"]
    title, about, link = text.split("  \n")
    assert title == "**x**"
    assert link == "[Open in COD](<https://cod/v/web>)"
    assert "@all" not in about
    unescaped = about.replace("\\\\", "")
    for mark in "*_[]()<>":
        assert unescaped.count(mark) == unescaped.count("\\" + mark)


def test_teams_gets_a_card_of_plain_runs() -> None:
    found = posted(NoticeFormat.TEAMS, replace(NOTICE, about=HOSTILE))
    assert found["type"] == "message"
    (attachment,) = found["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    card = attachment["content"]
    assert {block["type"] for block in card["body"]} == {"RichTextBlock"}
    assert card["body"][1]["inlines"] == [{"type": "TextRun", "text": HOSTILE}]
    (action,) = card["actions"]
    assert (action["type"], action["url"]) == ("Action.OpenUrl", "https://cod/v/web")


def test_matrix_gets_html_without_peoples_markup() -> None:
    found = posted(NoticeFormat.MATRIX, replace(NOTICE, subject=HOSTILE, about=HOSTILE))
    tree = html.fragment_fromstring(found["html"], create_parent="div")
    assert [each.tag for each in tree.iterdescendants()] == ["strong", "br", "br", "a"]
    assert tree.text_content() == HOSTILE + HOSTILE + "Open in COD"
    assert found["text"].splitlines() == [HOSTILE, HOSTILE, "https://cod/v/web"]
