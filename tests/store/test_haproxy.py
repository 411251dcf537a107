"""HAProxy, with the example's configuration, before two MariaDB hosts: a server reaches the host
that takes writes, and no other."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from cod.core.database.writer import connect
from cod.pool import Pool
from tests.manual import DOCS
from tests.pair import Pair
from tests.ports import free_port
from tests.store.test_pool import Calls, add_node, names
from tests.store.test_writer_lease import nodes_at
from tests.waiting import until

needs_haproxy = pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed")
pytestmark = [
    pytest.mark.mariadb,
    pytest.mark.mariadb_always,
    pytest.mark.slow,
    needs_haproxy,
]

EXAMPLE = DOCS / "examples/haproxy"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.stop()


@contextmanager
def proxy_before(hosts: Sequence[str], folder: Path) -> Iterator[int]:
    """Run HAProxy, configured as in the example, before these databases; provide its port."""
    port = free_port()
    text = (EXAMPLE / "haproxy.cfg").read_text()
    text = re.sub(r"\n +server db\d.*", "", text).replace("127.0.0.1:3306", f"127.0.0.1:{port}")
    text = text.replace("/etc/haproxy/check-writer", str(EXAMPLE / "check-writer"))
    servers = re.findall(r" +server db\d.*", (EXAMPLE / "haproxy.cfg").read_text())
    for line, host in zip(servers, hosts, strict=False):
        text += re.sub(r"10\.0\.0\.\d+:3306", host, line) + "\n"
    (folder / "haproxy.cfg").write_text(text)
    with subprocess.Popen(["haproxy", "-db", "-f", str(folder / "haproxy.cfg")]) as process:
        try:
            yield port
        finally:
            process.terminate()


@pytest.fixture
def proxy(pair: Pair, tmp_path: Path) -> Iterator[int]:
    pair.first.execute("CREATE USER haproxy")
    with proxy_before(pair.hosts, tmp_path) as port:
        yield port


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
