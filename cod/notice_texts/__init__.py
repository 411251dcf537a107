"""Notices to groups and to the site's administrators: one function for each event. The text says
what happened, and what to do about it. Pure.

Each function returns the arguments that `store.notices.notices.add` takes beside the recipient, so
that a flow tells of an event in one statement:

    text = notice_texts.lease_ended(vcluster)
    notices.add(tx, **text, group_id=vcluster.group_id, vcluster_id=vcluster.id, now=now)

Import all of them from here: which file of the package they are in does not matter.
"""

from cod.notice_texts.digest import *
from cod.notice_texts.kinds import *
from cod.notice_texts.nodes import *
from cod.notice_texts.requests import *
from cod.notice_texts.services import *
from cod.notice_texts.shares import *
from cod.notice_texts.vclusters import *
from cod.notice_texts.volumes import *
from cod.notice_texts.windows import *
from cod.notice_texts.words import LONGEST_SUBJECT as LONGEST_SUBJECT
from cod.notice_texts.words import NoticeText as NoticeText
