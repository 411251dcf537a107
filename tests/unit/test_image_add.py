"""`cod image add`: whether the server reads the file by itself, or is sent it."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cod.cli.images.image import _server_reads


def test_a_server_of_another_user_is_sent_what_it_cannot_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with TemporaryDirectory() as made:
        folder = Path(made)
        file, socket = folder / "image", folder / "api.sock"
        for each in (file, socket):
            each.write_text("")
        file.chmod(0o644)
        assert _server_reads(str(socket), file)  # its own user's
        assert not _server_reads("https://head:8443", file)
        assert _server_reads(str(folder / "none"), file)  # asking will say so
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
        assert not _server_reads(str(socket), file)  # the folder is closed
        folder.chmod(0o755)
        assert _server_reads(str(socket), file)
        file.chmod(0o640)
        assert not _server_reads(str(socket), file)
