"""An image sent by a form of the portal, without scripts: an upload as any other, made by the same route under the same
rights, whose one piece is the file in the form. What came of it when the connection breaks stays, for whoever goes on.
"""

from __future__ import annotations

import logging
import secrets
from typing import Any

from twisted.internet.defer import ensureDeferred

from cod.model import Refused, Upload, Who
from cod.web.calls import carry_out, checked, permit
from cod.web.errors import HttpProblem
from cod.web.portal import sessions
from cod.web.portal.answers import Answer, PageRequest, check_host, redirect, same_origin
from cod.web.portal.forms import Fields, Form
from cod.web.portal.front import Portal
from cod.web.portal.links import url
from cod.web.resources import ROUTES
from cod.web.routes import find
from cod.web.uploads import tus
from cod.web.uploads.piece import Piece
from cod.web.uploads.request import UploadRequest, _Flow
from cod.wire.multipart import BadForm, FileForm, boundary

PATH, PAGE = "/images/upload", "/images/new"
_ROUTE = find(ROUTES, "POST", tus.PATH)[0]

log = logging.getLogger("cod.uploads")


class FormRequest(UploadRequest):
    """What such forms add to a request."""

    portal: Portal | None
    _form: FileForm | None = None
    _early: list[bytes]
    _begun = False

    def _is_form(self) -> bool:
        kind = str(self.getHeader("content-type") or "")
        return self.method == b"POST" and self.path == PATH.encode() and kind.startswith("multipart/form-data")

    def gotLength(self, length: int | None) -> None:
        """The headers are there. Who asks is found out before any of the form is looked at."""
        super().gotLength(length)
        if not self._is_form() or self._refusal is not None:
            return
        self._early = []
        try:
            self._form = FileForm(boundary(self.getHeader("content-type")), length or 0)
        except BadForm as error:
            self._refuse(_bad(error))

    def handleContentChunk(self, data: bytes) -> None:
        """A piece of the body."""
        if self._form is None or self._refusal is not None:
            return super().handleContentChunk(data)
        try:
            own = self._form.feed(data)
        except BadForm as error:
            return self._refuse(_bad(error))
        if self._piece is not None:
            return self._swallow(own) if self._piece.error is not None else self._piece.feed(own)
        return self._gather(own)

    def _gather(self, own: bytes) -> None:
        """What comes of the file before there is an upload for it."""
        assert self._form is not None
        self._early.append(own)
        if self._form.size is not None and not self._begun:
            self._begun = True
            assert self._authentic is not None
            self.channel.pauseProducing()
            self._authentic.addCallback(lambda _none: ensureDeferred(self._open_form()))

    async def _open_form(self) -> None:
        """All but the file is there: make the upload, or refuse it."""
        try:
            self._piece = await self._begin_form()
        except Exception as error:
            self._refuse(tus.wrong(error))
        early, self._early = self._early, []
        if self._piece is not None and self._gone:
            await self._piece.leave()
        elif self._piece is not None:
            self._piece.feed(b"".join(early))
        if not self._gone:
            self.channel.resumeProducing()

    async def _begin_form(self) -> Piece:
        assert self._form is not None
        assert _ROUTE is not None
        assert _ROUTE.body is not None
        fields, who = self._form.fields, self._sender()
        permit(_ROUTE, who)
        told = {name: fields.get(name, "").strip() for name in ("name", "group", "sha256")}
        body = checked(_ROUTE.body, {name: text for name, text in told.items() if text} | {
            "size": self._form.size, "plain": fields.get("plain") == "true",
            "raw": fields.get("raw") == "true"})
        self._check_upload(_ROUTE, body)
        made = await carry_out(self.context, _ROUTE, self._ask(_ROUTE, who, {}, body, None))
        assert isinstance(made, Upload)
        self._upload = made
        return await self.context.intake.begin(made, None, _Flow(self))

    def _sender(self) -> Who:
        """Who sends the form, from a page of ours. Raises `HttpProblem` (403)."""
        check_host(self.getHeader("host"), self.context.names)
        assert self._form is not None
        visit = sessions.visit(self.session, self.getHeader("cookie"))
        genuine = same_origin(self.getHeader) and visit.proves(self._form.fields.get("csrf", ""))
        if visit.who is None or not genuine:
            raise HttpProblem(403, "form_expired",
                              "This form is too old, or does not come from this site. Load the page again.")
        return visit.who

    async def _form_answer(self, asked: PageRequest) -> Answer:
        """On to the image, or the form again with what is wrong."""
        portal = self.portal
        assert portal is not None
        try:
            if self._refusal is not None:
                raise self._refusal
            assert self._form is not None
            self._form.close()
            assert self._piece is not None
            assert self._who is not None
            upload, _image = await self._piece.finish(self._who)
            return redirect(url("images", upload.name), sessions.flash(f"{upload.name} is there, and is taken in."))
        except Exception as error:
            wrong = _bad(error) if isinstance(error, BadForm) else tus.wrong(error, self._upload)
            if _for_good(wrong):
                await self._give_up()
        if wrong.status in (401, 403) or asked.visit.who is None:
            return await portal.answer(asked, wrong)
        typed = {name: [text] for name, text in (self._form.fields if self._form else {}).items() if name != "csrf"}
        form = Form(PATH, asked.visit.csrf(), secrets.token_hex(16), Fields(typed), wrong.faults or {
            wrong.field or "": wrong.detail})
        return await portal.page_with(asked, PAGE, form, wrong.status)

    def _leave_piece(self, result: Any = None) -> None:
        if self._piece is not None and self._refusal is not None and self._is_form() and _for_good(self._refusal):
            ensureDeferred(self._give_up())
        else:
            super()._leave_piece(result)

    async def _give_up(self) -> None:
        """What was refused shall not become an image later, all of it being there, nor be in the way of another try."""
        piece, self._piece = self._piece, None
        if piece is None:
            return
        await piece.leave()
        try:
            await self.context.intake.drop(piece.upload)
        except Refused:
            pass  # the refusal itself has given it up
        except Exception as error:
            log.error("the upload of %s was refused and stays: %s", piece.upload.name, error)


def _for_good(wrong: HttpProblem) -> bool:
    """Would the same file be refused again? Not where the server, or another sender, was in the way."""
    return wrong.status < 500 and wrong.status != 423


def _bad(error: BadForm) -> HttpProblem:
    return HttpProblem(400, "bad_form", f"{error}.")
