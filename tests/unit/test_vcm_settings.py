"""A VCM's configuration file: what cannot work is refused when it is read, with the key and a
sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from cod.vcm.gridengine.settings import GridEngineSettings
from cod.vcm.settings import BadSettings, load

FILE = """\
vcluster = "batch"
servers = ["10.77.0.1:8071", "10.78.0.1:8071"]
requires = "<requires><memory><mib min='4GiB'/></memory></requires>"
metrics = "127.0.0.1:9471"
[gridengine]
start = "ssh root@{address} 'systemctl start {hostname}@{{1}}'"
"""


def read(folder: Path, text: str) -> GridEngineSettings:
    (folder / "vcm.toml").write_text(text)
    return load(folder / "vcm.toml", GridEngineSettings)


def test_what_is_right_is_read_as_it_stands(tmp_path: Path) -> None:
    found = read(tmp_path, FILE)
    assert found.servers == ("10.77.0.1:8071", "10.78.0.1:8071")
    assert found.requires.startswith("<requires>")
    assert found.gridengine.start.endswith("{{1}}'")


@pytest.mark.parametrize(
    ("change", "into", "says"),
    [
        ("10.78.0.1:8071", "10.78.0.1", "servers.1: '10.78.0.1' is not ADDRESS:PORT"),
        ("10.78.0.1:8071", "10.78.0.256:8071", "servers.1: '10.78.0.256:8071' is not ADDRESS:PORT"),
        ("10.78.0.1:8071", "10.78.0.1:80710", "servers.1: '80710' is no port"),
        ("127.0.0.1:9471", "127.0.0.1:0", "metrics: '0' is no port"),
        ("</requires>", "", "requires: is not XML"),
        ("<mib min", "<mib least", "requires: "),
        ("{hostname}", "{host}", "gridengine.start: "),
        ("{{1}}", "{1}", "gridengine.start: "),
        ("1}}'", "1}}", "gridengine.start: "),
        ("[gridengine]", "[sge]", "sge: no such key"),
        ("[gridengine]", "[gridengin]", "gridengin: no such key; did you mean 'gridengine'?"),
        (
            "[gridengine]",
            "[gridengine]\nquue = 'all.q'",
            "gridengine.quue: no such key; did you mean 'queue'?",
        ),
        ("vcluster", "#", "vcluster: is missing"),
        ("=", "", "is not TOML"),
    ],
)
def test_what_could_not_work_is_refused(tmp_path: Path, change: str, into: str, says: str) -> None:
    assert change in FILE
    with pytest.raises(BadSettings) as refused:
        read(tmp_path, FILE.replace(change, into, 1))
    assert says in str(refused.value)
    assert "Value error" not in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="`cod vcm enroll` writes one"):
        load(tmp_path / "none", GridEngineSettings)
