"""An image sent by a form of the portal, without scripts. The form makes an upload by the same
route and under the same rights as any other, and the file in the form is its only piece. If the
connection breaks, the bytes that have arrived stay, and the upload can be continued."""

from __future__ import annotations

import logging

from twisted.internet.defer import ensureDeferred

from cod.model import Refused, Upload, Who
from cod.web.api.calls import carry_out, checked, permit, question
from cod.web.api.resources import ROUTE_MAP
from cod.web.api.routes import Names
from cod.web.api.upload_body import check_size
from cod.web.http import sessions
from cod.web.http.errors import HttpProblem
from cod.web.http.request import WebRequest
from cod.web.http.sessions import check_host, same_origin
from cod.web.http.uploads import tus
from cod.web.http.uploads.body import FileBody, Flow
from cod.web.http.uploads.piece import Piece
from cod.web.portal.answers import Answer, PageRequest, redirect
from cod.web.portal.forms import Fields
from cod.web.portal.front import Portal, filled
from cod.web.portal.links import url
from cod.web.portal.page_body import page_request, send_page
from cod.wire.multipart import BadForm, FileForm, boundary

PATH, PAGE = "/images/upload", "/images/new"
_ROUTE = ROUTE_MAP.find("POST", tus.PATH)[0]

log = logging.getLogger("cod.uploads")


class FormBody(FileBody):
    """The body of a form with a file, for the portal."""

    def __init__(self, request: WebRequest, portal: Portal) -> None:
        super().__init__(request)
        self._portal, self._context = portal, portal.context
        self._form: FileForm | None = None
        self._begun = False

    def begin(self) -> None:
        """Read the form's boundary. The fields are read only when the sender is known."""
        request = self.request
        if request.refusal is None:
            try:
                self._form = FileForm(
                    boundary(request.getHeader("content-type")), request.length or 0
                )
            except BadForm as error:
                request.refuse(_bad(error))

    def take(self, data: bytes) -> None:
        """Read the fields, and write the bytes of the file into the upload."""
        assert self._form is not None
        try:
            self.put(self._form.feed(data))
        except BadForm as error:
            return self.request.refuse(_bad(error))
        if self._form.size is not None and not self._begun:
            self._begun = True
            self.open()
        return None

    async def begun(self) -> Piece:
        """Create the upload, and return its piece: all fields before the file have arrived."""
        assert self._form is not None
        assert _ROUTE is not None
        assert _ROUTE.body is not None
        request, context = self.request, self._context
        fields, who = self._form.fields, self._sender()
        permit(_ROUTE, who)
        values = {name: fields.get(name, "").strip() for name in ("name", "group", "sha256")}
        body = checked(
            _ROUTE.body,
            {name: text for name, text in values.items() if text}
            | {
                "size": self._form.size,
                "plain": fields.get("plain") == "true",
                "raw": fields.get("raw") == "true",
            },
        )
        check_size(context, body)
        upload = await carry_out(context, _ROUTE, question(context, who, Names(), body))
        assert isinstance(upload, Upload)
        self.upload = upload
        return await context.intake.begin(upload, None, Flow(request))

    def _sender(self) -> Who:
        """Return the user who sends the form from a page of this site. Raises `HttpProblem`
        (403)."""
        request = self.request
        check_host(request.getHeader("host"), self._context.names)
        assert self._form is not None
        visit = sessions.visit(request.session, request.getHeader("cookie"))
        genuine = same_origin(request.getHeader) and visit.proves(self._form.fields.get("csrf", ""))
        if visit.who is None or not genuine:
            raise HttpProblem(
                403,
                "form_expired",
                "This form is too old, or does not come from this site. Load the page again.",
            )
        return visit.who

    async def answer(self) -> None:
        """Send the browser to the image's page, or show the form again with its faults."""
        send_page(self.request, await self._answered(page_request(self.request, b"")))

    async def _answered(self, asked: PageRequest) -> Answer:
        try:
            if self.request.refusal is not None:
                raise self.request.refusal
            assert self._form is not None
            self._form.close()
            assert self.piece is not None
            assert self.request.who is not None
            upload, _image = await self.piece.finish(self.request.who)
            return redirect(
                url("images", upload.name),
                sessions.flash(f"{upload.name} is there, and is taken in."),
            )
        except Exception as error:
            wrong = _bad(error) if isinstance(error, BadForm) else tus.wrong(error, self.upload)
            if _for_good(wrong):
                await self._give_up()
        if wrong.status in (401, 403) or asked.visit.who is None:
            return await self._portal.answer(asked, wrong)
        fields = self._form.fields if self._form else {}
        typed = Fields({name: [text] for name, text in fields.items() if name != "csrf"})
        form = filled(asked, typed, wrong)
        return await self._portal.page_with(asked, PAGE, form, wrong.status)

    def leave(self) -> None:
        """Free the upload's file for others; delete an upload that was refused for good."""
        if (
            self.piece is not None
            and self.request.refusal is not None
            and _for_good(self.request.refusal)
        ):
            ensureDeferred(self._give_up())
        else:
            super().leave()

    async def _give_up(self) -> None:
        """Delete a refused upload: it must not become an image later, nor be in the way of another
        attempt."""
        piece, self.piece = self.piece, None
        if piece is None:
            return
        await piece.leave()
        try:
            await self._context.intake.drop(piece.upload)
        except Refused:
            pass  # the refusal has deleted the upload already
        except Exception as error:
            log.error("the upload of %s was refused and stays: %s", piece.upload.name, error)


def _for_good(wrong: HttpProblem) -> bool:
    """Return whether the same file would be refused again. It would not if the server or another
    sender was in the way."""
    return wrong.status < 500 and wrong.status != 423


def _bad(error: BadForm) -> HttpProblem:
    return HttpProblem(400, "bad_form", f"{error}.")
