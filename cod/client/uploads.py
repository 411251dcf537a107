"""Sends files to the server as images, in pieces. An upload that broke off is continued, even days
later.

    with Client("https://cod.example:8443", token) as cod, open("debian.qcow2", "rb") as file:
        image = Sender(cod).add("debian", file)

The server knows how much of an upload it has (docs/uploads), and recognises an upload by its name,
group, length and sha256, so that the client need not remember anything. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from cod.client import ApiError, Client, Unreachable, full_name, path, path_of

# bytes of one request: the server reads so much of a refused request, so that the client can read
# the reason
PIECE = 1 << 26
PIECE_TYPE = "application/offset+octet-stream"
# seconds before each attempt while nothing gets through
PAUSES = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 30.0, 30.0)
_BLOCK = 1 << 20
_TRY_AGAIN = ("locked", "offset", "unavailable", "busy", "slow_down", "not_json")

Progress = Callable[[str, int, int], object]
"""progress(what is being done, bytes done, bytes in all)"""


class Sender:
    """A sender of files. `sleep` waits between attempts."""

    def __init__(
        self,
        client: Client,
        progress: Progress = lambda what, done, total: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client, self._progress, self._sleep = client, progress, sleep

    def add(
        self,
        name: str,
        file: BinaryIO,
        *,
        group: str = "",
        sha256: str | None = None,
        plain: bool = False,
        raw: bool = False,
    ) -> Any:
        """Send `file`, to become the image `name` of that group ('': the site's). Return the image,
        which the server is ingesting. Raises ApiError; Unreachable if the server stays away: the
        same call continues the upload later.

        name    bare or in full, as for `full_name`
        sha256  the file's digest; None: the file is read to find it
        """
        size = os.fstat(file.fileno()).st_size
        digest = sha256 or self._sum(file, size)
        name = full_name(name, group)
        wanted = {
            "name": name,
            "size": size,
            "group": group,
            "sha256": digest,
            "plain": plain,
            "raw": raw,
        }
        upload = self._begun(wanted)
        if upload is not None:
            self._send(upload["id"], upload["offset"], file, size)
        image = self._client.get(path_of("images", name))
        if image["sha256"] != digest:
            raise ApiError(
                409, "conflict", f"the upload of {name} is gone, and the image is another one"
            )
        return image

    def _sum(self, file: BinaryIO, size: int) -> str:
        state, done = hashlib.sha256(), 0
        while block := file.read(_BLOCK):
            state.update(block)
            done += len(block)
            self._progress("reading", done, size)
        return state.hexdigest()

    # ------------------------------------------------------------ where it goes on

    def _begun(self, wanted: dict[str, Any]) -> Any:
        """Return the upload to continue; None if the image exists already."""
        try:
            return self._client.post("/uploads", wanted)
        except ApiError as error:
            if error.code != "conflict":
                raise
            same = self._same(wanted)
            if same is None and not self._is_there(wanted["name"], wanted["sha256"]):
                raise
            return same

    def _same(self, wanted: dict[str, Any]) -> Any:
        """Return the upload of the same file that exists already; None if there is none."""
        wanted = wanted | {"group": wanted["group"] or "site"}
        for upload in self._client.items("/uploads", q=wanted["name"]):
            if all(upload[key] == value for key, value in wanted.items()):
                return self._client.get(path("uploads", upload["id"]))
        return None

    def _is_there(self, name: str, sha256: str) -> bool:
        try:
            image = self._client.get(path_of("images", name))
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return bool(image["sha256"] == sha256 and image["state"] != "failed")

    # ------------------------------------------------------------ sending

    def _send(self, upload: str, offset: int | None, file: BinaryIO, size: int) -> None:
        """Send the file until the server has all of it and the upload has become an image."""
        failures = 0
        while offset is not None:
            before: int = offset
            try:
                offset = (
                    self._piece(upload, offset, file, size)
                    if offset < size
                    else self._where(upload)
                )
            except (ApiError, Unreachable) as error:
                if failures == len(PAUSES) or (
                    isinstance(error, ApiError) and error.code not in _TRY_AGAIN
                ):
                    raise
                offset = self._after(upload, PAUSES[failures], before)
            failures = 0 if offset is None or offset > before else failures + 1
            if offset == size == before and failures:
                self._sleep(PAUSES[0])  # the server has all bytes, and is reading them again

    def _after(self, upload: str, pause: float, offset: int) -> int | None:
        """Wait after a failure, and return how many bytes the server has; `offset` if it does not
        answer."""
        self._sleep(pause)
        try:
            return self._where(upload)
        except (ApiError, Unreachable) as error:
            if isinstance(error, ApiError) and error.code not in _TRY_AGAIN:
                raise
            return offset

    def _where(self, upload: str) -> int | None:
        """Return how many bytes the server has. None means that there is no such upload: it has
        become an image, or was given up."""
        try:
            return int(self._client.get(path("uploads", upload))["offset"])
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    def _piece(self, upload: str, offset: int, file: BinaryIO, size: int) -> int | None:
        """Send the next piece. Return how many bytes the server has then; None if it has all."""
        length = min(PIECE, size - offset)
        headers = {
            "Content-Type": PIECE_TYPE,
            "Content-Length": str(length),
            "Tus-Resumable": "1.0.0",
            "Upload-Offset": str(offset),
        }
        answer = self._client.send(
            "PATCH", path("uploads", upload), self._blocks(file, offset, length, size), headers
        )
        end = int(answer.get("Upload-Offset", offset))
        return None if end == size else end

    def _blocks(self, file: BinaryIO, offset: int, length: int, size: int) -> Iterator[bytes]:
        file.seek(offset)
        end = offset + length
        while offset < end:
            block = file.read(min(_BLOCK, end - offset))
            if not block:
                raise OSError("the file became shorter while it was sent")
            yield block
            offset += len(block)
            self._progress("sending", offset, size)
