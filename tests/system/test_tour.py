"""`make try`: a person's way in, after a first try that was killed; and nothing is left when they
are done."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

from cod.lab import network, record
from tests.system.browser import chromium, context, picture
from tests.system.qemu import CHECKOUT, build_all
from tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(1500)]

LAB = f"tour{os.getpid()}"


def begin(out: Path, port: int) -> tuple[subprocess.Popen[bytes], str]:
    """The tour, once it has said what to click; its words."""
    said = out.with_suffix(".said")
    with said.open("wb") as file:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "cod.demo.tour",
                "--out",
                str(out),
                "--lab",
                LAB,
                "--port",
                str(port),
            ],
            cwd=CHECKOUT,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )

    def told() -> bool:
        assert process.poll() is None, said.read_text()
        return "Ctrl-C ends" in said.read_text()

    until(told, said.read_text, 600)
    return process, said.read_text()


def test_from_the_printed_link_to_a_portal_with_machines(tmp_path: Path) -> None:
    build_all("hello-a", "hello-b")
    first, words = begin(tmp_path / "first", 8743)
    port = re.search(r"https://localhost:(\d+)/", words)
    assert port
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert network.exists(record.namespace(LAB))  # its machines and its server go on
    second, words = begin(tmp_path / "second", int(port[1]))
    try:
        links = re.findall(r"https://localhost:\d+/invitation#\S+", words)
        assert len(links) == 2
        with chromium() as browser:  # on the host, where the lab's network is not
            page = context(browser).new_page()
            page.goto(links[0])
            page.get_by_label("Password", exact=True).first.fill("tea in the machine room")
            page.get_by_role("button", name="Set password").click()
            expect(page.get_by_role("heading", name="Overview")).to_be_visible()
            page.goto(f"https://localhost:{port[1]}/nodes")
            # four machines have turned up
            expect(page.get_by_role("row")).to_have_count(5, timeout=900_000)
            picture(page, "tour-nodes")
            page.goto(f"https://localhost:{port[1]}/groups")
            expect(page.get_by_text("biology").first).to_be_visible()
    finally:
        second.send_signal(signal.SIGINT)
        assert second.wait(120) == 0
    assert not network.exists(record.namespace(LAB))
    assert not record.folder(LAB).exists()
    with pytest.raises(ProcessLookupError):
        os.killpg(second.pid, 0)
