"""HAProxy, with the example's configuration, before two MariaDB hosts: a server reaches the host
that takes writes, and no other."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cod.core.database.writer import connect
from cod.pool import Pool
from tests.manual import DOCS
from tests.ports import free_port
from tests.store.test_pool import Calls, add_node, names
from tests.store.test_writer_lease import Pair, nodes_at
from tests.waiting import until

pytestmark = [
    pytest.mark.mariadb,
    pytest.mark.mariadb_always,
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed"),
]

EXAMPLE = DOCS / "examples/haproxy"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def proxy(pair: Pair, tmp_path: Path) -> Iterator[int]:
    """Run HAProxy before the pair; return its port."""
    port = free_port()
    text = (EXAMPLE / "haproxy.cfg").read_text()
    text = re.sub(r"\n +server db3.*", "", text)
    for was, own in {
        "127.0.0.1:3306": f"127.0.0.1:{port}",
        "10.0.0.11:3306": pair.hosts[0],
        "10.0.0.12:3306": pair.hosts[1],
        "/etc/haproxy/check-writer": str(EXAMPLE / "check-writer"),
    }.items():
        assert was in text
        text = text.replace(was, own)
    (tmp_path / "haproxy.cfg").write_text(text)
    pair.first.execute("CREATE USER haproxy")
    with subprocess.Popen(["haproxy", "-db", "-f", str(tmp_path / "haproxy.cfg")]) as process:
        try:
            yield port
        finally:
            process.terminate()


def test_a_server_goes_on_at_the_promoted_host_and_stays_there(pair: Pair, proxy: int) -> None:
    calls = Calls()
    pool = Pool(connect(f"mysql+pymysql://cod@127.0.0.1:{proxy}/cod"), calls)
    assert calls.result(pool.run(add_node, "a"), 120) == "a"
    until(lambda: nodes_at(pair.second) == ["a"])

    pair.first.kill()
    asked = pool.run(add_node, "bb")  # waits, and is run at the host that takes writes
    pair.promote()
    assert calls.result(asked, 120) == "bb"

    pair.start_first("--read-only")  # as a host that comes back has to
    assert calls.result(pool.run(add_node, "ccc"), 120) == "ccc"
    pool.close()
    pool = Pool(connect(f"mysql+pymysql://cod@127.0.0.1:{proxy}/cod"), calls)
    assert calls.result(pool.run(add_node, "dddd"), 120) == "dddd"
    assert sorted(calls.result(pool.read(names), 120)) == ["a", "bb", "ccc", "dddd"]
    assert nodes_at(pair.first) == ["a"]
    pool.close()
