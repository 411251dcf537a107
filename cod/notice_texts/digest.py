"""A person's daily mail of notices."""

from __future__ import annotations

from collections.abc import Sequence

from cod.model import Notice
from cod.notice_texts.words import NoticeText, moment, notice
from cod.quantity import counted

LONGEST = 12_000  # characters: in UTF-8 they fit the column of notices' sentences


def digest(kind: str, notices: Sequence[tuple[Notice, str | None]]) -> NoticeText:
    """Return a mail with these notices, each with the group that received it; None: the site."""
    parts: list[str] = []
    size = 0
    for each, group in notices:
        head = f"{moment(each.at)}, {f'group {group}' if group else 'the site'}: {each.subject}"
        part = f"{head}\n{each.about}"
        size += len(part)
        if size > LONGEST:
            parts.append(
                f"And {counted(len(notices) - len(parts), 'further notice')} in the portal."
            )
            break
        parts.append(part)
    return notice(kind, counted(len(notices), "notice"), "\n\n".join(parts), "/notices")
