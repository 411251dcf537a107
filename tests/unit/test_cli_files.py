"""Commands that read a file of theirs say what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cod.cli.root import cod


@pytest.mark.parametrize(
    "words",
    [
        "node approve -f FILE",
        "node approve -f - --yes",
        "vcluster create web --size 1 --template debian --attributes FILE",
        "vcluster create web --size 1 --template debian --also 1:debian:FILE",
        "request match --count 1 --attributes FILE",
        "template check FILE",
        "diff -f FILE",
        "node import csv FILE",
        "lab up FILE",
    ],
)
def test_a_file_that_is_no_text_is_named(tmp_path: Path, words: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"name\n\xff\n")
    asked = ["--server", str(tmp_path / "none.sock"), *words.replace("FILE", str(file)).split()]
    found = CliRunner().invoke(cod, asked, input=file.read_bytes())
    assert found.exit_code in (1, 2), found.output
    assert "is not UTF-8" in found.output
    assert str(file) in found.output or "-f -" in words
    assert "codec" not in found.output


def test_a_mark_of_its_coding_belongs_to_no_name(tmp_path: Path) -> None:
    file = tmp_path / "names"
    file.write_bytes("\N{BYTE ORDER MARK}# nobody\n".encode())
    found = CliRunner().invoke(cod, ["node", "approve", "-f", str(file)])
    assert f"{file} names no node" in found.output


@pytest.mark.parametrize(
    "words",
    [
        "image make hello-a --into FILE/images",
        "vcm enroll batch --into FILE/vcm",
    ],
)
def test_a_folder_that_cannot_be_made_is_named_before_anything_is_done(
    tmp_path: Path, words: str
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    asked = ["--server", str(tmp_path / "none.sock"), *words.replace("FILE", str(file)).split()]
    found = CliRunner().invoke(cod, asked)
    assert found.exit_code == 1, found.output
    folder = f"{file}/{words.rpartition('/')[2]}"
    assert f"Error: {folder} cannot be written to: Not a directory" in found.output
