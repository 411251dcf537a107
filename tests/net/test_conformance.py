"""The conformance kit for VCMs: the Python framework and the example in the shell pass it, broken
ones do not."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from twisted.internet.defer import succeed

from cod.flows.vcms import vcms
from cod.model import Site, SiteRef
from cod.net.nmp import tls, verbs
from cod.net.nmp.connection import NmpConnection
from cod.net.nmp.server import NmpServer
from cod.net.nmp.session import VcmSession
from cod.pool import Pool, in_transaction
from cod.security.ca import Ca
from tests.conformance.__main__ import Verdict, judge, main
from tests.conformance.clauses import CLAUSES
from tests.conformance.kit import Kit
from tests.conformance.server import Server
from tests.conformance.server_clauses import SERVER_CLAUSES
from tests.manual import page
from tests.net.nmplab import NOW, enrolled, founded, port
from tests.store import manager_world as world
from tests.waiting import until

ROOT = Path(__file__).parents[2]
PAGE = page("nmp").read_text()
KIT_PAGE = page("nmp-kit").read_text()
EXAMPLE = ROOT / "docs/examples/vcm.sh"
WANTS = "echo {count} > wanted.new && mv wanted.new wanted"
FARM = """interval = 0.3
[farm]
load = "{folder}/load"
servers = "{folder}/servers"
spare = 0
"""


def test_every_clause_is_named_after_a_section_of_the_page() -> None:
    sections = set(re.findall(r"^##+ (.*)$", PAGE, re.MULTILINE))
    for clauses in (CLAUSES, SERVER_CLAUSES):
        assert {one.section for one in clauses} <= sections
        assert len({one.says for one in clauses}) == len(clauses)


def test_the_kit_s_page_has_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    for option in re.findall(r"--[a-z]+", capsys.readouterr().out):
        assert option == "--help" or f"`{option}" in KIT_PAGE, option
    assert (
        "python -m tests.conformance --wants 'echo {count} > wanted' -- docs/examples/vcm.sh"
        in KIT_PAGE
    )


def bad(found: list[Verdict]) -> list[str]:
    return [
        f"{one.section}: {one.clause}: {one.result}: {one.why}"
        for one in found
        if one.result != "passed"
    ]


@pytest.mark.slow
def test_the_example_in_the_shell_passes() -> None:
    assert bad(judge(Kit([str(EXAMPLE)], WANTS))) == []


@pytest.mark.slow
def test_the_framework_in_python_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the example of docs/write-a-vcm; the Grid Engine VCM is the same framework with another
    pool."""
    (found,) = re.findall(r"```python\n(.*?)```", page("write-a-vcm").read_text(), re.DOTALL)
    (tmp_path / "webfarm.py").write_text(found)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    kit = Kit(
        [sys.executable, str(tmp_path / "webfarm.py")],
        "echo {count}00 > load.new && mv load.new load",
        FARM,
    )
    assert bad(judge(kit)) == []


BROKEN = {
    "says ping when": ('[ "$pinged" = no ] &&', '[ "$pinged" = never ] &&'),
    "answers ping": ('say pong "<pong/>" "$message"', ":"),
    "asks for the whole picture": (
        'waits_for "status $seen" || ask status "<status/>" "$seen"',
        ":",
    ),
    "remembers after a kill": ('put "$state/seen" "$seen"\n    fi\n    say ack', "fi\n    say ack"),
    "says hello first": ('vcm=\\"vcm.sh 1.0\\"', 'kind=\\"vcm.sh 1.0\\"'),
    "hears a message twice": (
        'if [ "$sequence" -gt "$seen" ]; then\n        case',
        'if [ "$sequence" -gt "$seen" ] || { say bye "<bye/>"; exit 1; }; then\n        case',
    ),
    "speaks to nobody but": ("-verify_hostname cod -verify_return_error", ""),
    "names one node where": ('[ "$wanted" -gt 0 ] || break', ":"),
    "none but those that would do": ('[ "$(count "$path/named")" = 0 ] || [', "true || ["),
    "uses a node again": (
        'put "$file" "$host $address $what -"$\'\\n\'\n                    done',
        ":\n                    done",
    ),
    "counts a lost node no more": ('drop "$state/nodes/$node"\n', ":\n"),
    "says goodbye": ("""say bye '<bye reason="the VCM is being stopped"/>'""", ":"),
}


@pytest.mark.slow
@pytest.mark.parametrize("clause", BROKEN)
def test_a_vcm_that_breaks_a_clause_fails_it(tmp_path: Path, clause: str) -> None:
    text, (right, wrong) = EXAMPLE.read_text(), BROKEN[clause]
    assert right in text
    broken = tmp_path / "vcm.sh"
    broken.write_text(text.replace(right, wrong))
    broken.chmod(0o755)
    found = judge(Kit([str(broken)], WANTS, patience=8.0), clause)
    assert found
    assert "failed" in {one.result for one in found}


def test_a_command_that_is_no_vcm_fails() -> None:
    (found,) = judge(Kit(["true"], patience=0.5), "says hello first")
    assert (found.result, "does not connect" in found.why) == ("failed", True)


# ---------------------------------------------------------------- the example and a real server


@pytest.fixture
def folder(
    reactor: Any, in_reactor: Any, pool: Pool, engine: Engine, site: Site, tmp_path: Path
) -> Iterator[Path]:
    """What `cod vcm enroll` writes for the vcluster 'pool' on a real server."""
    ca = Ca(tmp_path / "ca", "test")
    in_transaction(engine, founded, site)
    served = NmpServer(
        reactor,
        pool,
        SiteRef(site),
        "cod1",
        tls.listening(reactor, ca, ["127.0.0.1"], 0),
        tls.identity,
        lambda: NOW,
        lambda effects: None,
    )
    in_reactor(served.startService)
    issued = enrolled(engine, ca)
    for name, content in (
        ("vcm.key", issued.key),
        ("vcm.crt", issued.certificate),
        ("ca.crt", ca.certificate),
    ):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "vcm.toml").write_text(
        f'vcluster = "pool"\nservers = ["127.0.0.1:{port(served)}"]\n'
    )
    yield tmp_path
    in_reactor(served.stopService)


@pytest.fixture
def shell(folder: Path) -> Iterator[Path]:
    """The folder of the example, which runs for the vcluster 'pool' on a real server."""
    (folder / "wanted").write_text("1\n")
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen(
            [str(EXAMPLE), str(folder / "vcm.toml")],
            stdout=log,
            stderr=log,
            env=os.environ | {"PATH": os.environ["PATH"]},
        )
    yield folder
    process.terminate()
    assert process.wait(30) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clause", "where", "wrong"),
    [
        (
            "answers a key that was used before",
            (verbs, "request_key"),
            lambda vcluster, key: f"{vcluster}.{key}.{secrets.token_hex(4)}",
        ),
        ("says goodbye to a connection", (NmpConnection, "leave"), lambda self, reason: None),
        (
            "refuses an acknowledgement",
            (VcmSession, "_acknowledged"),
            lambda self, ack, peer: succeed(None),
        ),
    ],
)
def test_a_server_that_breaks_a_clause_fails_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, clause: str, where: Any, wrong: Any
) -> None:
    owner, name = where
    monkeypatch.setattr(owner, name, wrong)
    (found,) = judge(Server(folder, patience=2.0), clause)
    assert found.result == "failed"
    monkeypatch.undo()
    (found,) = judge(Server(folder), clause)
    assert found.result == "passed"


@pytest.mark.slow
def test_the_server_passes(folder: Path) -> None:
    assert [
        (one.clause, one.result, one.why)
        for one in judge(Server(folder))
        if one.result != "passed" and "keepalive" not in one.why
    ] == []


@pytest.mark.slow
def test_the_example_grows_and_shrinks_with_a_real_server(
    shell: Path, engine: Engine, site: Site
) -> None:
    def rests_at(count: int) -> None:
        (shell / "wanted.new").write_text(f"{count}\n")
        (shell / "wanted.new").replace(shell / "wanted")

        def there() -> bool:
            in_transaction(engine, world.run_pass, site, NOW)
            in_transaction(engine, world.arrive, NOW)
            held = {member["address"] for member in in_transaction(engine, vcms.picture, 1).members}
            file = shell / "members"
            shown = (
                {line.split()[1] for line in file.read_text().splitlines()}
                if file.exists()
                else set()
            )
            return len(shown) == count and shown == held

        until(there, (shell / "log").read_text)

    for count in (1, 3, 2):
        rests_at(count)
